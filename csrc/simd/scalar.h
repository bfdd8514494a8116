/* scalar.h: the verbs of simd.h for any 64-bit CPU, in the vector extensions of GCC and Clang.
 *
 * Four lanes: the compiler maps them to SSE2 or NEON where there is one, else to scalar code. */
#define Q7_W 4

typedef float q7_f32 __attribute__((vector_size(16)));
typedef int32_t q7_mask __attribute__((vector_size(16))); /* 0 or -1 per lane */
typedef q7_mask q7_i32;
typedef uint32_t q7_unsigned __attribute__((vector_size(16)));

Q7_INLINE q7_f32 q7_set1(float x) { return (q7_f32){x, x, x, x}; }
Q7_INLINE q7_f32 q7_keep(q7_f32 v) {
    __asm__("" : "+m"(v));
    return v;
}
Q7_INLINE q7_f32 q7_load(const float *p) {
    q7_f32 v;
    memcpy(&v, p, sizeof v);
    return v;
}
Q7_INLINE void q7_store(float *p, q7_f32 v) { memcpy(p, &v, sizeof v); }
Q7_INLINE q7_f32 q7_load_tail(const float *p, int64_t n) {
    q7_f32 v = {0};
    for (int64_t i = 0; i < n; i++) v[i] = p[i];
    return v;
}
Q7_INLINE void q7_store_tail(float *p, q7_f32 v, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = v[i];
}

Q7_INLINE q7_f32 q7_repeat_pair(const float *p) { return (q7_f32){p[0], p[1], p[0], p[1]}; }
Q7_INLINE q7_f32 q7_load_twice(const float *p) { return (q7_f32){p[0], p[0], p[1], p[1]}; }
Q7_INLINE q7_f32 q7_swap_pairs(q7_f32 v) { return (q7_f32){v[1], v[0], v[3], v[2]}; }
Q7_INLINE q7_f32 q7_permute(q7_f32 v, q7_i32 which) {
    return (q7_f32){v[which[0]], v[which[1]], v[which[2]], v[which[3]]};
}
Q7_INLINE q7_f32 q7_evens(q7_f32 a, q7_f32 b) { return (q7_f32){a[0], a[2], b[0], b[2]}; }

Q7_INLINE q7_f32 q7_add(q7_f32 a, q7_f32 b) { return a + b; }
Q7_INLINE q7_f32 q7_sub(q7_f32 a, q7_f32 b) { return a - b; }
Q7_INLINE q7_f32 q7_mul(q7_f32 a, q7_f32 b) { return a * b; }
Q7_INLINE q7_f32 q7_div(q7_f32 a, q7_f32 b) { return a / b; }
Q7_INLINE q7_f32 q7_fma(q7_f32 a, q7_f32 b, q7_f32 c) { return a * b + c; }
Q7_INLINE q7_f32 q7_fnma(q7_f32 a, q7_f32 b, q7_f32 c) { return c - a * b; }

Q7_INLINE q7_mask q7_lt(q7_f32 a, q7_f32 b) { return (q7_mask)(a < b); }
Q7_INLINE q7_mask q7_le(q7_f32 a, q7_f32 b) { return (q7_mask)(a <= b); }
Q7_INLINE q7_mask q7_eq(q7_f32 a, q7_f32 b) { return (q7_mask)(a == b); }
Q7_INLINE q7_mask q7_unordered(q7_f32 a) { return (q7_mask)(a != a); }
Q7_INLINE q7_mask q7_mask_and(q7_mask a, q7_mask b) { return a & b; }
Q7_INLINE q7_mask q7_mask_or(q7_mask a, q7_mask b) { return a | b; }
Q7_INLINE q7_mask q7_mask_not(q7_mask a) { return ~a; }
Q7_INLINE q7_f32 q7_select(q7_mask m, q7_f32 a, q7_f32 b) {
    return (q7_f32)((m & (q7_mask)a) | (~m & (q7_mask)b));
}
Q7_INLINE bool q7_any(q7_mask m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
Q7_INLINE q7_mask q7_load_bool_tail(const uint8_t *p, int64_t n) {
    q7_mask m = {0};
    for (int64_t i = 0; i < n; i++) m[i] = -(p[i] != 0);
    return m;
}
Q7_INLINE q7_mask q7_load_bool(const uint8_t *p) { return q7_load_bool_tail(p, Q7_W); }

Q7_INLINE q7_f32 q7_vmax(q7_f32 a, q7_f32 b) { return q7_select(a > b, a, b); }
Q7_INLINE q7_f32 q7_vmin(q7_f32 a, q7_f32 b) { return q7_select(a < b, a, b); }
Q7_INLINE q7_f32 q7_neg(q7_f32 a) { return -a; }
Q7_INLINE q7_f32 q7_abs(q7_f32 a) { return (q7_f32)((q7_mask)a & 0x7fffffff); }
Q7_INLINE q7_f32 q7_copysign(q7_f32 magnitude, q7_f32 sign) {
    return (q7_f32)(((q7_mask)magnitude & 0x7fffffff) | ((q7_mask)sign & INT32_MIN));
}
Q7_INLINE q7_f32 q7_sqrt(q7_f32 a) {
    return (q7_f32){__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]),
                    __builtin_sqrtf(a[3])};
}
/* Adding 2^23 leaves no room for a fraction; from there on every float is integral. */
Q7_INLINE q7_f32 q7_round_even(q7_f32 a) {
    const q7_f32 big = q7_copysign(q7_set1(0x1p23f), a);
    return q7_select(q7_abs(a) < q7_set1(0x1p23f), q7_copysign((a + big) - big, a), a);
}
Q7_INLINE q7_f32 q7_floor(q7_f32 a) {
    const q7_f32 r = q7_round_even(a);
    return r - (q7_f32)((r > a) & (q7_mask)q7_set1(1.0f));
}
Q7_INLINE float q7_hsum(q7_f32 a) { return (a[0] + a[2]) + (a[1] + a[3]); }
Q7_INLINE void q7_hsum_4(const q7_f32 v[4], float *p) {
    for (int i = 0; i < 4; i++) p[i] = q7_hsum(v[i]);
}
Q7_INLINE float q7_hmax(q7_f32 a) {
    const float x = a[0] > a[2] ? a[0] : a[2], y = a[1] > a[3] ? a[1] : a[3];
    return x > y ? x : y;
}
Q7_INLINE q7_f32 q7_exp2i(q7_f32 t) { return (q7_f32)((q7_mask)t << 23); }
Q7_INLINE q7_f32 q7_frexp(q7_f32 a, q7_f32 *e) {
    *e = __builtin_convertvector(((q7_mask)a >> 23) - 127, q7_f32);
    return (q7_f32)(((q7_mask)a & 0x007fffff) | 0x3f800000);
}

Q7_INLINE q7_i32 q7_i32_set1(int32_t x) { return (q7_i32){x, x, x, x}; }
Q7_INLINE q7_i32 q7_i32_load(const int32_t *p) {
    q7_i32 v;
    memcpy(&v, p, sizeof v);
    return v;
}
Q7_INLINE void q7_i32_store(int32_t *p, q7_i32 v) { memcpy(p, &v, sizeof v); }
Q7_INLINE q7_i32 q7_i32_add(q7_i32 a, q7_i32 b) {
    return (q7_i32)((q7_unsigned)a + (q7_unsigned)b); /* unsigned, since it wraps */
}
Q7_INLINE q7_i32 q7_i32_mul(q7_i32 a, q7_i32 b) {
    return (q7_i32)((q7_unsigned)a * (q7_unsigned)b);
}
Q7_INLINE q7_i32 q7_i32_up(q7_i32 a, const int bits) { return (q7_i32)((q7_unsigned)a << bits); }
Q7_INLINE q7_f32 q7_float(q7_i32 v) { return __builtin_convertvector(v, q7_f32); }
Q7_INLINE q7_i32 q7_int(q7_f32 v) { return __builtin_convertvector(v, q7_i32); }
Q7_INLINE q7_i32 q7_i32_select(q7_mask m, q7_i32 a, q7_i32 b) { return (m & a) | (~m & b); }
Q7_INLINE q7_f32 q7_gather(const float *p, q7_i32 at) {
    q7_f32 v;
    for (int i = 0; i < Q7_W; i++) v[i] = at[i] < 0 ? 0 : p[at[i]];
    return v;
}
Q7_INLINE q7_i32 q7_load_bytes(const uint8_t *p) { return (q7_i32){p[0], p[1], p[2], p[3]}; }
Q7_INLINE q7_f32 q7_bits(q7_i32 v, int shift, int mask) {
    return __builtin_convertvector(v >> shift & mask, q7_f32);
}
Q7_INLINE q7_i32 q7_madd_pairs(q7_i32 sum, const int16_t *p, q7_i32 pair) {
    q7_i32 w;
    memcpy(&w, p, sizeof w);
    const q7_i32 first = (q7_i32)((q7_unsigned)w << 16) >> 16; /* of each pair */
    const q7_i32 low = first * ((q7_i32)((q7_unsigned)pair << 16) >> 16);
    const q7_i32 high = (w >> 16) * (pair >> 16);
    return (q7_i32)((q7_unsigned)sum + (q7_unsigned)low + (q7_unsigned)high); /* wraps */
}

typedef uint8_t q7_block __attribute__((vector_size(16)));

Q7_INLINE q7_block q7_block_set1(uint8_t x) { return (q7_block){0} + x; }
Q7_INLINE q7_block q7_block_load(const uint8_t *p) {
    q7_block v;
    memcpy(&v, p, sizeof v);
    return v;
}
Q7_INLINE void q7_block_store(uint8_t *p, q7_block v) { memcpy(p, &v, sizeof v); }
Q7_INLINE q7_block q7_block_load_tail(const uint8_t *p, int64_t n) {
    q7_block v = {0};
    memcpy(&v, p, (size_t)n);
    return v;
}
Q7_INLINE void q7_block_store_tail(uint8_t *p, q7_block v, int64_t n) { memcpy(p, &v, (size_t)n); }
Q7_INLINE q7_block q7_block_xor(q7_block a, q7_block b) { return a ^ b; }
Q7_INLINE q7_block q7_block_max(q7_block a, q7_block b) {
    const q7_block larger = (q7_block)(a > b);
    return (a & larger) | (b & ~larger);
}
Q7_INLINE void q7_zip_pairs(const q7_block x[2], q7_i32 pairs[4]) {
    uint8_t both[64] = {0}; /* little endian */
    for (int i = 0; i < 16; i++) both[4 * i] = x[0][i], both[4 * i + 2] = x[1][i];
    memcpy(pairs, both, sizeof both);
}
Q7_INLINE q7_block q7_block_of(const q7_f32 x[4], int32_t zero, bool is_signed) {
    const float bottom = (float)((is_signed ? -128 : 0) - zero);
    q7_block v;
    for (int i = 0; i < 4; i++) { /* NaN: the lowest */
        const q7_f32 above = q7_vmax(x[i], q7_set1(bottom));
        const q7_f32 rounded = q7_round_even(q7_vmin(above, q7_set1(bottom + 255.0f)));
        for (int j = 0; j < 4; j++) v[4 * i + j] = (uint8_t)((int32_t)rounded[j] + zero);
    }
    return v;
}
Q7_INLINE q7_block q7_block_in_order(q7_block v) { return v; }

Q7_INLINE q7_unsigned q7_load_words(const uint16_t *p) {
    return (q7_unsigned){p[0], p[1], p[2], p[3]};
}
/* Exponents of float16 are 112 less: so read, subnormals are such numbers, too. */
Q7_INLINE q7_f32 q7_load_f16(const uint16_t *p) {
    const q7_unsigned v = q7_load_words(p);
    const q7_f32 x = (q7_f32)((v & 0x7fff) << 13) * 0x1p112f;
    return (q7_f32)((q7_unsigned)x | (v & 0x8000) << 16);
}
Q7_INLINE q7_f32 q7_load_bf16(const uint16_t *p) { return (q7_f32)(q7_load_words(p) << 16); }
