# Toolchain file: builds for 64-bit Arm with Debian's cross compiler, programs that tests run under
# qemu's emulation. `./run neon` unpacks Check and zlib for that processor into arm64/ of the build
# folder; they and the C library are linked statically, so that the emulator needs no other files.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)

# CMake reads this file also for its trial builds, whose folder is another.
get_property(trial GLOBAL PROPERTY IN_TRY_COMPILE)
if(trial)
  return()
endif()
set(CMAKE_FIND_ROOT_PATH ${CMAKE_BINARY_DIR}/arm64)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_BINARY_DIR}/arm64)
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_BINARY_DIR}/arm64/usr/lib/aarch64-linux-gnu/pkgconfig)
