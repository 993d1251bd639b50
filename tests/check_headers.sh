#!/usr/bin/env bash
# Each public header compiles alone as C11 and C++17, explains every function, no function takes
# more than six parameters, and minim.h has a function for each op.
# Usage: check_headers.sh SOURCE_DIR [BUILD_DIR]
set -euo pipefail
cd "$1"
failed=0

# first COMMANDS...: the first that is there.
first() {
    local name
    for name in "$@"; do
        if command -v "$name" >/dev/null; then
            echo "$name"
            return
        fi
    done
}

# compiles HEADER COMPILER OPTIONS...
compiles() {
    if ! printf '#include "%s"\n' "${1##*/}" |
        "${@:2}" -Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only -; then
        echo "$1: does not compile alone with ${*:2}"
        failed=1
    fi
}

cc=$(first cc gcc clang)
cxx=$(first c++ g++ clang++)
[ -n "$cxx" ] || echo "no C++ compiler: the headers are not tried as C++17"
for header in include/*.h; do
    compiles "$header" "$cc" -x c -std=c11
    [ -z "$cxx" ] || compiles "$header" "$cxx" -x c++ -std=c++17
done

# A paragraph (lines without a blank one between) explains its functions if a comment on a line of
# its own comes before them. What mn_..._options_default does is said once, at the top of minim.h.
awk '
    function check(declaration, name, depth, count, i, c) {
        name = declaration
        sub(/[ \t]*\(.*/, "", name)
        sub(/.*[^A-Za-z0-9_]/, "", name)
        functions++
        if (!explained && name !~ /_options_default$/)
            report(name " has no comment")
        gsub(/\/\*[^*]*\*\//, "", declaration)
        count = 1
        for (i = index(declaration, "("); i <= length(declaration); i++) {
            c = substr(declaration, i, 1)
            depth += (c == "(") - (c == ")")
            count += c == "," && depth == 1
        }
        if (count > 6)
            report(name " takes " count " parameters")
    }
    function report(text) {
        print FILENAME ":" FNR ": " text
        failed = 1
    }
    FNR == 1 { comment = open = explained = 0 }
    !comment && /^[ \t]*$/ { explained = 0 }
    !comment && /^[ \t]*\/\*/ { explained = comment = 1 }
    comment { if (/\*\//) comment = 0; next }
    /^[ \t]*MN_API/ { declaration = ""; open = 1 }
    open { declaration = declaration " " $0 }
    open && /;/ { open = 0; check(declaration) }
    END {
        print functions + 0 " public functions"
        exit failed || !functions
    }' include/*.h || failed=1

# Each op is run by functions that minim.h declares, or by backward only. Needs a build.
if [ -n "${2:-}" ] && [ -x "$2/minim" ]; then
    declared=$(grep -oE '\bmn_[a-z0-9_]+\(' include/minim.h | tr -d '(' | sort -u)
    ops=0
    while read -r op functions; do
        ops=$((ops + 1))
        if [ -z "$functions" ] && grep -qx "mn_$op" <<<"$declared"; then
            echo "op $op: ops/table.c says that no function of minim.h runs it, but there is mn_$op"
            failed=1
        fi
        for name in $functions; do
            if ! grep -qx "$name" <<<"$declared"; then
                echo "op $op: minim.h does not declare $name (ops/table.c names another, if it must)"
                failed=1
            fi
        done
    done < <("$2/minim" ops --json | sed 's/{"name"/\n&/g' |
        sed -nE 's/^\{"name":"(\w+)".*"functions":\[([^]]*)\].*/\1 \2/p' | tr ',"' '  ')
    echo "$ops ops"
    [ "$ops" -gt 0 ] || failed=1
fi
[ $failed -eq 0 ]
