#!/bin/sh
# Make one backup in $BACKUPS and remove all but the newest seven: docs/guides/backups.md says why in this order.
#
#   ARTIFACTS  directory of the artifact store        STORE     host of the store
#   BACKUPS    directory of the backups               PASSWORD  file with the store's password
set -eu
backup="$BACKUPS/$(date -u +%Y-%m-%dT%H-%M-%SZ)"
part="$BACKUPS/unfinished"
rm -rf "$part"
mkdir "$part"
touch "$part/begun"
sleep 1  # times of files may be whole seconds
# Marks of how far the store had got: later ones would be ahead of the copy of the store, and its start be refused.
for marks in "$ARTIFACTS"/*/high-water.json; do
    [ -e "$marks" ] || continue
    folder="$part/marks/$(basename "$(dirname "$marks")")"
    mkdir -p "$folder"
    cp "$marks" "$folder"
done
# Files may be removed while they are copied; the second copy has all that the store points to.
cp -Rp "$ARTIFACTS" "$part/artifacts" || true
REDISCLI_AUTH="$(cat "$PASSWORD")" valkey-cli -h "$STORE" -p "${STORE_PORT:-6379}" --rdb "$part/dump.rdb"
test -s "$part/dump.rdb"
# A copy that was cut off is newer than its original, so `cp -u` would keep it; a whole copy has its original's time.
find "$part/artifacts" -type f -newer "$part/begun" -delete
rm "$part/begun"
cp -Rpu "$ARTIFACTS/." "$part/artifacts"
rm -f "$part"/artifacts/*/high-water.json
if [ -d "$part/marks" ]; then
    cp -R "$part/marks/." "$part/artifacts"
    rm -r "$part/marks"
fi
sync
mv "$part" "$backup"
echo "made $backup"
for old in $(ls -1d "$BACKUPS"/20* | head -n -7); do
    rm -rf "$old"
done
