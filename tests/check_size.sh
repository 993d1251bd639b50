#!/usr/bin/env bash
# The static library of a Release build stays small, and who needs a little of it links a little.
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
if [ -x "$2/example_bits" ]; then # it needs conversions of single numbers alone
    bytes=$(wc -c <"$2/example_bits")
    echo "example_bits: $bytes bytes, 30000 are too many"
    [ "$bytes" -lt 30000 ]
fi
