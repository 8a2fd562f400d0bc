#!/bin/sh
# Puts the compiled kernels of the image where they can be written, which numba wants, and becomes the command.
set -eu
if [ ! -d "$NUMBA_CACHE_DIR" ]; then
    mkdir -p "$NUMBA_CACHE_DIR"
    cp -R "${COMPILED_KERNELS:-/opt/abound/kernels}/." "$NUMBA_CACHE_DIR"
    # As a copy of what cannot be written it could not be written either.
    chmod -R u+w "$NUMBA_CACHE_DIR"
fi
exec "$@"
