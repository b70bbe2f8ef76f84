
# From the cluster profile. A line that fails is reported, also in the verdict of a failed run. The lines after it still run.
hpcdist_failed() {
    local line="" # of the script: of a function such as module, the last command in it is told otherwise
    case "$0" in *bash) ;; *) line="$(sed -n "$2p" "$0")" ;; esac
    export HPCDIST_SETUP_FAILED="exit code $1: ${line:-$3}"
    echo "hpcdist: setup: $HPCDIST_SETUP_FAILED" >&2
}
trap 'case "${BASH_SOURCE[1]:-}" in "") hpcdist_failed "$?" "$LINENO" "$BASH_COMMAND" ;; esac' ERR
{{ lines }}
trap - ERR
