# Run nothing that somebody else has put in the place of the snapshot.
for folder in {{ folders }}; do
    if [ -L "$folder" ] || [ ! -O "$folder" ]; then
        echo "hpcdist: $folder is a link, or belongs to somebody else: nothing of it was run" >&2
        exit 1
    fi
done
