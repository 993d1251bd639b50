#!/usr/bin/env bash
# Rooms may include only themselves and lower rooms; programs only the public headers and their own,
# but benchmarks also core, ops and what the tests share.
# Usage: check_includes.sh SOURCE_DIR [BUILD_DIR]
set -euo pipefail
export LC_ALL=C
cd "$1"

rooms="core ops autograd optim amp models train"
order=${rooms// / <- }
failed=0

if ! tr -s ' ' <docs/architecture.md | grep -F -- "$order" >/dev/null; then
    echo "docs/architecture.md: the include order is not there: $order"
    failed=1
fi

# allowed ROOM: patterns of what its files may include, besides headers of their own folder.
allowed() {
    local room
    case $1 in
    datasets) echo "include/* datasets/* core/base.h core/philox.h" ;;
    cli | examples) echo "$1/*" ;;
    bench) echo "bench/* core/* ops/* tests/support_*" ;;
    *)
        printf 'include/* '
        [ "$1" != train ] || printf 'datasets/* '
        for room in $rooms; do
            printf '%s/* ' "$room"
            [ "$room" != "$1" ] || break
        done
        ;;
    esac
}

# fits FILE HEADER PATTERNS...: whether FILE may include HEADER.
fits() {
    local file=$1 header=$2 pattern
    case $header in
    minim.h | minim_ext.h) return 0 ;;
    *..*) return 1 ;;
    */*) ;;
    *)
        [ -e "${file%/*}/$header" ]
        return
        ;;
    esac
    for pattern in "${@:3}"; do
        # shellcheck disable=SC2053 # a pattern is meant
        [[ $header != $pattern ]] || return 0
    done
    return 1
}

# Angle brackets count only where they name a room; all else there is the system's.
set -f
files=0
for room in $rooms datasets cli examples bench; do
    [ -d "$room" ] || continue
    patterns=$(allowed "$room")
    while read -r file; do
        files=$((files + 1))
        while read -r header; do
            # shellcheck disable=SC2086 # patterns are words
            if ! fits "$file" "$header" $patterns; then
                echo "$file: may not include \"$header\""
                failed=1
            fi
        done < <(sed -nE -e 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"([^"]*)".*/\1/p' \
            -e "s,^[[:space:]]*#[[:space:]]*include[[:space:]]*<((include|datasets|cli|${rooms// /|})/[^>]*)>.*,\1,p" \
            "$file" | sed 's,^\./,,')
    done < <(find "$room" -name '*.[ch]' -o -name '*.def' | sort)
done
echo "$files files"
[ $failed -eq 0 ] && [ $files -gt 0 ]
