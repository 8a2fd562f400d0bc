#!/bin/sh
# Puts the compiled kernels of the image where they can be written, which numba wants, and becomes the command.
set -eu
if [ ! -d "$NUMBA_CACHE_DIR" ]; then
    mkdir -p "$NUMBA_CACHE_DIR"
    cp -R /opt/abound/kernels/. "$NUMBA_CACHE_DIR"
fi
exec "$@"
