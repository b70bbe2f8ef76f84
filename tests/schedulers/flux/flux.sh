#!/bin/bash
# hpcdist: {{ job_comment }}
#flux: {{ directives }}
{{ setup }}

set -euo pipefail
{{ own_folders }}
cd {{ cwd | quote }}
export {{ settings }}
export {{ environment }}
# One agent per node, which forks the node's ranks.
exec flux run --nodes={{ num_nodes }} --tasks-per-node=1 --output={{ output | quote }} \
{{ start_agent }} {{ submitit_folder | quote }}

