#!/usr/bin/env bash
# The static library of a Release build stays small.
# Usage: check_size.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
most=1000000

if ! grep -qx 'CMAKE_BUILD_TYPE:STRING=Release' "$2/CMakeCache.txt" ||
    grep -q '^MINIM_SANITIZE:STRING=.' "$2/CMakeCache.txt"; then
    echo "no Release build"
    exit 77
fi
bytes=$(wc -c <"$2/libminim.a")
echo "libminim.a: $bytes bytes, $most are too many"
[ "$bytes" -lt $most ]
