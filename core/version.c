/* core/version.c: the library's version. */
#include "include/minim.h"

#define MN_TEXT(number)  MN_TEXT_(number)
#define MN_TEXT_(number) #number

const char *mn_version(void)
{
    return MN_TEXT(MN_VERSION_MAJOR) "." MN_TEXT(MN_VERSION_MINOR) "." MN_TEXT(MN_VERSION_PATCH);
}
