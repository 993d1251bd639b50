#!/usr/bin/env bash
# What is installed can be used: by find_package and by pkg-config, static and shared, from C11 and
# C++17, also after the whole prefix has been moved.
# Usage: check_install.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
export LC_ALL=C
source=$1
build=$2

for tool in cmake pkg-config; do
    command -v $tool >/dev/null || { echo "$tool is not there"; exit 77; }
done
if grep -q '^MINIM_SANITIZE:STRING=.' "$build/CMakeCache.txt" ||
    grep -q '^CMAKE_C_FLAGS[A-Z_]*:STRING=.*--coverage' "$build/CMakeCache.txt"; then
    echo "instrumented libraries are not installed"
    exit 77
fi
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
cxx=
for name in c++ g++ clang++; do
    [ -n "$cxx" ] || cxx=$(command -v $name || true)
done
[ -n "$cxx" ] || echo "no C++ compiler: only C11 is tried"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset DESTDIR PKG_CONFIG_PATH

cat >"$work/program.c" <<'END'
#include <minim.h>
#include <minim_ext.h>
#include <stdio.h>

int main(void)
{
    mn_context *ctx = mn_context_create(NULL, NULL);
    double sum = 0;
    mn_tensor_item(mn_sum(mn_full(ctx, MN_F32, 0, NULL, 3), 0, NULL, false), &sum);
    mn_context_free(ctx);
    printf("%s\n", mn_version());
    return sum != 3 || mn_version_number() != MN_VERSION_NUMBER;
}
END
cp "$work/program.c" "$work/program.cpp"
cat >"$work/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.16)
project(user LANGUAGES C)
find_package(minim 0.1 REQUIRED COMPONENTS static shared)
foreach(kind minim static shared)
  add_executable(c_${kind} program.c)
  set_property(TARGET c_${kind} PROPERTY C_STANDARD 11)
  target_link_libraries(c_${kind} PRIVATE minim::${kind})
endforeach()
if(WITH_CXX)
  enable_language(CXX)
  foreach(kind static shared)
    add_executable(cpp_${kind} program.cpp)
    set_property(TARGET cpp_${kind} PROPERTY CXX_STANDARD 17)
    target_link_libraries(cpp_${kind} PRIVATE minim::${kind})
  endforeach()
endif()
END

# with_cmake PREFIX
with_cmake() {
    rm -rf "$work/out"
    cmake -S "$work" -B "$work/out" -DCMAKE_PREFIX_PATH="$1" -DCMAKE_C_COMPILER="$cc" \
        ${cxx:+-DWITH_CXX=ON -DCMAKE_CXX_COMPILER="$cxx"} >/dev/null
    cmake --build "$work/out" >/dev/null
    local program
    for program in "$work"/out/c_* "$work"/out/cpp_*; do
        [ ! -x "$program" ] || "$program" >/dev/null || { echo "find_package: $program"; exit 1; }
    done
}

# compiled FLAGS...: as C11 and as C++17, and runs.
compiled() {
    local warnings=(-Wall -Wextra -Wpedantic -Werror)
    "$cc" -std=c11 "${warnings[@]}" "$work/program.c" "$@" -o "$work/program"
    "$work/program" >/dev/null
    [ -n "$cxx" ] || return 0
    "$cxx" -std=c++17 "${warnings[@]}" "$work/program.cpp" "$@" -o "$work/program"
    "$work/program" >/dev/null
}

# with_pkg_config PREFIX
with_pkg_config() {
    local folder flags
    folder=$(dirname "$(find "$1" -name minim.pc)")
    read -ra flags <<<"$(PKG_CONFIG_PATH=$folder pkg-config --cflags --libs minim)"
    compiled "${flags[@]}" -Wl,-rpath,"${folder%/pkgconfig}"
    readelf -d "$work/program" | grep -q 'NEEDED.*libminim\.so\.0\.1' ||
        { echo "pkg-config: not the shared library, or another SONAME"; exit 1; }
    read -ra flags <<<"$(PKG_CONFIG_PATH=$folder pkg-config --static --cflags --libs minim)"
    compiled "${flags[@]/#-lminim/-l:libminim.a}"
    ! readelf -d "$work/program" | grep -q 'NEEDED.*libminim' ||
        { echo "pkg-config --static: the shared library"; exit 1; }
}

cmake --install "$build" --prefix "$work/first" >/dev/null
for file in bin/minim include/minim.h include/minim_ext.h; do
    [ -e "$work/first/$file" ] || { echo "$file is not installed"; exit 1; }
done
[ -n "$(find "$work/first" -name LICENSE)" ] || { echo "the licence is not installed"; exit 1; }
[ "$("$work/first/bin/minim" --version)" = "minim $(sed -nE \
    's/.*VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' "$source/include/minim.h" | paste -sd.)" ]
with_cmake "$work/first"
with_pkg_config "$work/first"
mv "$work/first" "$work/second"
with_cmake "$work/second"
with_pkg_config "$work/second"
! grep -rl "$work/first\|$build" "$work/second" --include='*.cmake' --include='*.pc' ||
    { echo "these name a folder of the build"; exit 1; }
DESTDIR=$work/root cmake --install "$build" --prefix /opt/minim >/dev/null
[ -e "$work/root/opt/minim/include/minim.h" ] || { echo "DESTDIR is not honoured"; exit 1; }
echo "installed, used, moved and used again"
