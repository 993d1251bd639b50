#!/usr/bin/env bash
# All sources are formatted as .clang-format says. Other versions of clang-format differ in details.
# Usage: check_format.sh SOURCE_DIR [BUILD_DIR]
set -euo pipefail
cd "$1"

for format in clang-format-14 clang-format; do
    if command -v $format >/dev/null && $format --version | grep -q 'version 14\.'; then
        find . \( -path ./.git -o -path './build*' \) -prune -o -name '*.[ch]' -print0 |
            xargs -0 $format --dry-run -Werror
        exit
    fi
done
echo "clang-format 14 is not there"
exit 77
