/* cpu.c: which instruction sets this CPU has, and the kernel table. */
#include "runtime.h"

const char *q7_isa_name(q7_isa isa) {
    static const char *const names[Q7_ISA_COUNT] = {"scalar", "neon", "avx2", "avx512"};
    return names[isa];
}

bool q7_isa_present(q7_isa isa) {
#if defined(__x86_64__)
    /* The compiler's runtime also asks the OS whether it saves the registers. Every CPU with AVX2
     * and FMA has F16C, which not every compiler can ask for. */
    if (isa == Q7_ISA_avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == Q7_ISA_avx512)
        return q7_isa_present(Q7_ISA_avx2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl");
    return isa == Q7_ISA_scalar;
#elif defined(__aarch64__)
    return isa == Q7_ISA_scalar || isa == Q7_ISA_neon;
#else
    return isa == Q7_ISA_scalar;
#endif
}

/* Q7_IF_<isa>(x, y) is x where the build compiled kernels for it (setup.py), else y. */
#ifdef Q7_HAVE_scalar
#define Q7_IF_scalar(x, y) x
#else
#define Q7_IF_scalar(x, y) y
#endif
#ifdef Q7_HAVE_neon
#define Q7_IF_neon(x, y) x
#else
#define Q7_IF_neon(x, y) y
#endif
#ifdef Q7_HAVE_avx2
#define Q7_IF_avx2(x, y) x
#else
#define Q7_IF_avx2(x, y) y
#endif
#ifdef Q7_HAVE_avx512
#define Q7_IF_avx512(x, y) x
#else
#define Q7_IF_avx512(x, y) y
#endif

/* A kernel's real type is its family's; here it is only an address (drivers cast it back). */
#define KERNEL(family, dtypes, isa, mr, nr) \
    Q7_IF_##isa(void q7_##family##_##dtypes##_##isa(void);, )
#include "kernels.def"
#undef KERNEL

const q7_kernel_row q7_kernels[Q7_KERNEL_COUNT] = {
#define KERNEL(family, dtypes, isa, mr, nr) \
    {#family, #dtypes, Q7_ISA_##isa, mr, nr, Q7_IF_##isa(q7_##family##_##dtypes##_##isa, NULL)},
#include "kernels.def"
#undef KERNEL
};
