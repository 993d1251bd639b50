#!/usr/bin/env bash
# What the libraries define and what they call: only mn_* is global, the shared library exports the
# public functions and nothing else, and nothing in it can exit, abort, print or catch signals.
# Usage: check_symbols.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
export LC_ALL=C
source=$1
static=$2/libminim.a
shared=$2/libminim.so

command -v nm >/dev/null || { echo "nm is not there"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# report TITLE: fails and lists if standard input has lines.
report() {
    local lines
    lines=$(sort -u)
    if [ -n "$lines" ]; then
        printf '%s:\n%s\n' "$1" "$lines"
        failed=1
    fi
}

# defined NM_OPTIONS...: names of global symbols that are defined; sanitizers add their own.
defined() {
    nm --defined-only "$@" | awk 'NF == 3 { print $3 }' |
        grep -vE '^(__(odr_)?(asan|ubsan|lsan|tsan|sancov|start|stop)|_init$|_fini$|_edata$|_end$|__bss_start$)' |
        sort -u
}

# Names of the functions that the headers declare with MN_API.
awk '
    /^[ \t]*#/ { next }
    { text = text " " $0 }
    END {
        while (match(text, /MN_API[^;(]*\(/)) {
            name = substr(text, RSTART, RLENGTH - 1)
            text = substr(text, RSTART + RLENGTH)
            sub(/[ \t]+$/, "", name)
            sub(/.*[^A-Za-z0-9_]/, "", name)
            print name
        }
    }' "$source"/include/*.h | sort -u >"$work/declared"

defined -g "$static" >"$work/global"
defined -D "$shared" >"$work/exported"
nm -u "$static" | awk 'NF == 2 { print $2 }' | sort -u >"$work/undefined"

report "libminim.a: global names without mn_" < <(grep -v '^mn_' "$work/global" || true)
report "libminim.so: exported, but not in a public header" \
    < <(comm -13 "$work/declared" "$work/exported")
report "libminim.so: in a public header, but not exported" \
    < <(comm -23 "$work/declared" "$work/exported")

stop='_?exit|_Exit|quick_exit|abort|assert|__assert_fail|__assert_perror_fail|raise|kill|v?errx?'
print='v?d?printf|vfprintf|fprintf|putc|fputc|putchar|puts|fputs|perror|psignal|v?syslog'
print="$print|std(out|err)"
catch='signal|sigaction|__(sysv|bsd)_signal|sigset|_?_?(sig)?longjmp'
report "libminim.a: calls what a library must not" \
    < <(grep -E "^((__)?($stop|$print|$catch)(_chk)?)$" "$work/undefined" || true)

echo "$(wc -l <"$work/declared") public functions, $(wc -l <"$work/exported") exported," \
    "$(wc -l <"$work/global") global names, $(wc -l <"$work/undefined") called from elsewhere"
[ $failed -eq 0 ]
