/* typed_end.h: ends a file that is included once per dtype. */
#undef T
#undef DTYPE
#undef LOWEST
#undef HIGHEST
