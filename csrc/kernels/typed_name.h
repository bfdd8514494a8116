/* typed_name.h: NAMED(f) is f_<DTYPE>, for loops that are instantiated once per dtype. */
#ifndef NAMED
#define NAMED_JOIN_(a, b) a##_##b
#define NAMED_JOIN(a, b) NAMED_JOIN_(a, b)
#define NAMED(f) NAMED_JOIN(f, DTYPE)
#endif
