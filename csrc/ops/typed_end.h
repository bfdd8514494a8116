/* typed_end.h: ends one instantiation of each_int.h. */
#undef T
#undef DTYPE
#undef LOWEST
#undef HIGHEST
