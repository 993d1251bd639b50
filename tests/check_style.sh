#!/usr/bin/env bash
# Limits that keep the code readable: length of functions, files and lines; no tabs, trailing
# blanks or left-over marks.
# Usage: check_style.sh SOURCE_DIR [BUILD_DIR]
set -euo pipefail
export LC_ALL=C
cd "$1"

library="core ops autograd optim amp models datasets train"
# The contract is one header by design, and half of it is explanation.
header_lines=1800
failed=0

# there PATHS...: those that exist.
there() {
    local path
    for path in "$@"; do
        [ ! -e "$path" ] || echo "$path"
    done
}

# shellcheck disable=SC2086,SC2046 # folders are words
sources=$(find $(there $library include cli bench examples tests) -name '*.[ch]' -o -name '*.def' |
    sort)
# shellcheck disable=SC2046
scripts=$(find $(there tests bench cmake CMakeLists.txt run .ci) -name '*.sh' -o -name '*.cmake' \
    -o -name '*.txt' -o -name run -type f | sort)

# shellcheck disable=SC2086 # file names have no blanks
awk -v header_lines=$header_lines '
    function report(text) {
        print FILENAME ":" FNR ": " text
        failed = 1
    }
    function end_of_file(limit) {
        limit = name ~ /^include\// ? header_lines : 600
        if (lines > limit) {
            print name ": " lines " lines, more than " limit
            failed = 1
        }
    }
    FNR == 1 { end_of_file(); name = FILENAME }
    { lines = FNR }
    FNR == 1 && !/^\/\*/ && !/^#!/ && /./ && FILENAME ~ /\.[ch]$/ { report("no head comment") }
    # Rows of a .def table stay on one line.
    length($0) > 100 && FILENAME !~ /\.def$/ { report("longer than 100 columns") }
    /\t/ { report("a tab") }
    /[ \t\r]$/ { report("trailing blanks") }
    /(^|[^A-Za-z0-9_])(TODO|FIXME|XXX)([^A-Za-z0-9_]|$)/ { report("a mark of unfinished work") }
    # Folded under -ffast-math; kernels, which lose NaN then in any case, may.
    /[^_A-Za-z](isnan|isfinite|isinf)\(/ && name ~ /^(core|ops|autograd|optim|amp|models|datasets|train)\/[^\/]*$/ {
        report("the C library\047s test of finiteness: use mn_isfinite_f64 or mn_isnan_f64")
    }
    # In formatted code only functions open and close in the first column.
    /^\{/ { start = FNR }
    /^\}/ && start {
        size = FNR - start + 1
        if (size > 80)
            report("a function of " size " lines, more than 80")
        start = 0
    }
    END { end_of_file(); exit failed }' $sources || failed=1

# shellcheck disable=SC2086
awk '
    FILENAME !~ /check_style/ && /\t|[ \t\r]$/ {
        print FILENAME ":" FNR ": a tab or trailing blanks"
        failed = 1
    }
    END { exit failed }' $scripts || failed=1

# Functions of the library and the program: nine of ten have at most 40 lines.
# shellcheck disable=SC2086,SC2046
find $(there $library cli) -name '*.c' -exec awk '
    /^\{/ { start = FNR }
    /^\}/ && start { print FNR - start + 1; start = 0 }' {} + | sort -n | awk '
    { size[NR] = $1 }
    END {
        p90 = size[int(0.9 * NR + 0.5)]
        printf "%d functions, lines: median %d, p90 %d, longest %d\n", NR,
            size[int((NR + 1) / 2)], p90, size[NR]
        exit p90 > 40
    }' || { echo "more than one function in ten is longer than 40 lines"; failed=1; }

[ $failed -eq 0 ]
