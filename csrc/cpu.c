/* cpu.c: which instruction sets this CPU has, and the kernel table. */
#define _GNU_SOURCE /* syscall under -std=c11 */
#include "runtime.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

const char *q7_isa_name(q7_isa isa) {
    static const char *const names[Q7_ISA_COUNT] = {"scalar",    "neon",        "neon_dot",
                                                    "neon_i8mm", "avx2",        "avx2_vnni",
                                                    "avx512",    "avx512_vnni", "amx"};
    return names[isa];
}

#if defined(__x86_64__)
enum { EAX, EBX, ECX, EDX };

/* A bit of leaf 7 of CPUID, whose names not every compiler knows. */
static bool feature(unsigned subleaf, int reg, int bit) {
    unsigned r[4];
    return __get_cpuid_count(7, subleaf, &r[EAX], &r[EBX], &r[ECX], &r[EDX]) && r[reg] >> bit & 1;
}

/* Linux gives a process the registers of AMX when it asks: the state of a thread that uses them is 8
 * KB larger. Emulators and checkers do not have the feature, or refuse. */
static bool may_use_tiles(void) {
#if defined(__linux__)
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

bool q7_isa_present(q7_isa isa) {
    switch (isa) { /* the compiler's runtime also asks the OS whether it saves the registers */
        case Q7_ISA_scalar: return true;
        /* Every CPU with AVX2 and FMA has F16C, which not every compiler can ask for. */
        case Q7_ISA_avx2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        case Q7_ISA_avx2_vnni: return q7_isa_present(Q7_ISA_avx2) && feature(1, EAX, 4);
        case Q7_ISA_avx512:
            return q7_isa_present(Q7_ISA_avx2) && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl");
        case Q7_ISA_avx512_vnni: return q7_isa_present(Q7_ISA_avx512) && feature(0, ECX, 11);
        case Q7_ISA_amx:
            return q7_isa_present(Q7_ISA_avx512_vnni) && feature(1, EAX, 5) &&
                   feature(0, EDX, 22) && feature(0, EDX, 24) && feature(0, EDX, 25) &&
                   may_use_tiles();
        default: return false;
    }
}
#elif defined(__aarch64__)
bool q7_isa_present(q7_isa isa) {
#if defined(__APPLE__) /* every one of theirs has sdot, and from M2 on smmla */
    int has = 0;
    size_t size = sizeof has;
    if (isa == Q7_ISA_neon_dot) return true;
    if (isa == Q7_ISA_neon_i8mm)
        return sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, NULL, 0) == 0 && has;
#elif defined(__linux__)
    enum { ASIMDDP = 20, I8MM = 13 };
    if (isa == Q7_ISA_neon_dot) return getauxval(AT_HWCAP) >> ASIMDDP & 1;
    if (isa == Q7_ISA_neon_i8mm)
        return q7_isa_present(Q7_ISA_neon_dot) && getauxval(AT_HWCAP2) >> I8MM & 1;
#endif
    return isa == Q7_ISA_scalar || isa == Q7_ISA_neon;
}
#else
bool q7_isa_present(q7_isa isa) { return isa == Q7_ISA_scalar; }
#endif

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
#ifdef Q7_HAVE_neon_dot
#define Q7_IF_neon_dot(x, y) x
#else
#define Q7_IF_neon_dot(x, y) y
#endif
#ifdef Q7_HAVE_neon_i8mm
#define Q7_IF_neon_i8mm(x, y) x
#else
#define Q7_IF_neon_i8mm(x, y) y
#endif
#ifdef Q7_HAVE_avx2
#define Q7_IF_avx2(x, y) x
#else
#define Q7_IF_avx2(x, y) y
#endif
#ifdef Q7_HAVE_avx2_vnni
#define Q7_IF_avx2_vnni(x, y) x
#else
#define Q7_IF_avx2_vnni(x, y) y
#endif
#ifdef Q7_HAVE_avx512
#define Q7_IF_avx512(x, y) x
#else
#define Q7_IF_avx512(x, y) y
#endif
#ifdef Q7_HAVE_avx512_vnni
#define Q7_IF_avx512_vnni(x, y) x
#else
#define Q7_IF_avx512_vnni(x, y) y
#endif
#ifdef Q7_HAVE_amx
#define Q7_IF_amx(x, y) x
#else
#define Q7_IF_amx(x, y) y
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
