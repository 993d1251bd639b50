#!/usr/bin/env bash
# The grad scaler, and what guards options and decisions against NaN and infinity, hold when all is
# compiled and linked with -O3 -ffast-math: the compiler may then take it that there are no
# infinities and NaN, and the program starts with subnormals flushed, which the library undoes for
# as long as it computes. CMakeLists.txt turns the flag off for all that it builds; here it comes
# last, as in a project that compiles the sources in its own way.
# Left out, since they need strict arithmetic: test_math but for its tests of finiteness, and
# test_convert (values of the functions themselves, payloads of NaN); the floating-point mode in
# test_workers, which has to begin in the default mode.
# Usage: check_fast_math.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
export LC_ALL=C
source=$1
cache=$2/CMakeCache.txt
flags="-O3 -ffast-math"
tests="test_amp test_amp_orders test_amp_state test_amp_threads test_not_finite test_scaler_property
  test_math"

if grep -q '^MINIM_SANITIZE:STRING=.' "$cache" ||
    grep -q '^CMAKE_C_FLAGS[A-Z_]*:STRING=.*--coverage' "$cache"; then
    echo "instrumented builds do not repeat this"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# cached NAME: what the build folder has chosen.
cached() {
    sed -n "s/^$1:[A-Z]*=//p" "$cache"
}

launcher=$(cached CMAKE_C_COMPILER_LAUNCHER)
printf '#!/bin/sh\nexec %s "$@" %s\n' "${launcher//;/ }" "$flags" >"$work/compile"
chmod +x "$work/compile"
cmake -S "$source" -B "$work" -G "$(cached CMAKE_GENERATOR)" \
    -DCMAKE_C_COMPILER="$(cached CMAKE_C_COMPILER)" \
    -DCMAKE_C_COMPILER_LAUNCHER="$work/compile" -DCMAKE_EXE_LINKER_FLAGS="$flags" \
    -DCMAKE_BUILD_TYPE=Debug -DMINIM_SHARED=OFF -DMINIM_PROGRAMS=OFF >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
# shellcheck disable=SC2086 # names of targets
cmake --build "$work" --target $tests >"$work/log" 2>&1 || { tail -40 "$work/log"; exit 1; }

failed=0
for test in $tests; do
    [ "$test" != test_math ] || export CK_RUN_CASE=finiteness
    CK_DEFAULT_TIMEOUT=0 "$work/tests/$test" >"$work/log" 2>&1 || { cat "$work/log"; failed=1; }
    grep -E '^[0-9]+%' "$work/log" | sed "s/^/$test: /"
done
[ $failed -eq 0 ]
