#!/bin/sh
# Puts the compiled kernels of the image where they can be written, which numba wants, and becomes the command.
set -eu
if [ ! -d "$NUMBA_CACHE_DIR" ]; then
    # Under another name until it is whole: where /tmp outlives a container that was killed meanwhile, as in a pod, the
    # next start would take what had been copied for all, and half a file keeps numba from loading anything.
    copy="$NUMBA_CACHE_DIR.part"
    rm -rf "$copy"
    mkdir -p "$copy"
    cp -R "${COMPILED_KERNELS:-/opt/abound/kernels}/." "$copy"
    # As a copy of what cannot be written it could not be written either.
    chmod -R u+w "$copy"
    mv "$copy" "$NUMBA_CACHE_DIR"
fi
exec "$@"
