/* Sums in order. Each sum depends on the one before it. So the numbers of a vector are summed inside the vector by
   doubling, and only one carry passes from vector to vector. */

#ifdef __AVX512F__ /* there a shuffle of 8 is one instruction */
#define WIDTH 8
#define BEFORE_1 8, 0, 1, 2, 3, 4, 5, 6
#define BEFORE_2 8, 8, 0, 1, 2, 3, 4, 5
#define BEFORE_4 8, 8, 8, 8, 0, 1, 2, 3
#define AFTER_1 1, 2, 3, 4, 5, 6, 7, 8
#define AFTER_2 2, 3, 4, 5, 6, 7, 8, 8
#define AFTER_4 4, 5, 6, 7, 8, 8, 8, 8
#define ALL(k) k, k, k, k, k, k, k, k
#else
#define WIDTH 4
#define BEFORE_1 4, 0, 1, 2
#define BEFORE_2 4, 4, 0, 1
#define AFTER_1 1, 2, 3, 4
#define AFTER_2 2, 3, 4, 4
#define ALL(k) k, k, k, k
#endif
typedef double several __attribute__((vector_size(8 * WIDTH)));
typedef int64_t places_of_several __attribute__((vector_size(8 * WIDTH)));
#ifdef __clang__
#define SHUFFLE(v, ...) __builtin_shufflevector(v, (several){0}, __VA_ARGS__)
#else
#define SHUFFLE(v, ...) __builtin_shuffle(v, (several){0}, (places_of_several){__VA_ARGS__})
#endif

/* Declares memory for n numbers to be summed in place, with zeros on both sides that fill the last vector. */
#define ROOM_IN_ORDER(name, n)                                                                                     \
    ROOM(name##_room, (n) + 2 * WIDTH)                                                                             \
    double *restrict name = name##_room + WIDTH;                                                                   \
    for (int64_t k = 0; k < WIDTH; k++) name[-1 - k] = name[(n) + k] = 0;

#define SHIFTED(v, n) (forward ? SHUFFLE(v, BEFORE_##n) : SHUFFLE(v, AFTER_##n))

/* `forward` and `discounted` are constants of each call, so that no time is lost on products with 1. */
static inline __attribute__((always_inline)) void scan_way(
    double *x, int64_t n, double discount, int forward, int discounted)
{
    several carry = {0}, shares;
    double powers[WIDTH + 1] = {1}; /* of the discount */
    for (int k = 0; k < WIDTH; k++) powers[k + 1] = powers[k] * discount;
    for (int k = 0; k < WIDTH; k++) shares[k] = powers[forward ? k + 1 : WIDTH - k];
    for (int64_t at = 0; at < n; at += WIDTH) {
        double *place = forward ? x + at : x + n - at - WIDTH;
        several v;
        memcpy(&v, place, sizeof v);
        if (discounted) v *= powers[1];
        v += discounted ? powers[1] * SHIFTED(v, 1) : SHIFTED(v, 1);
        v += discounted ? powers[2] * SHIFTED(v, 2) : SHIFTED(v, 2);
#if WIDTH == 8
        v += discounted ? powers[4] * SHIFTED(v, 4) : SHIFTED(v, 4);
#endif
        const several found = v + (discounted ? shares * carry : carry);
        const several total = forward ? SHUFFLE(v, ALL(WIDTH - 1)) : SHUFFLE(v, ALL(0));
        carry = total + (discounted ? powers[WIDTH] * carry : carry);
        memcpy(place, &found, sizeof found);
    }
}

/* Replaces each of n numbers, in reserved memory, by the discounted sum of it and the numbers before it, or after it,
   times the discount. So the sum before place k lies at k - 1, the sum after it at k + 1, and 0 beyond the ends. */
static void scan(double *x, int64_t n, double discount, int forward)
{
    const int discounted = discount != 1;
    if (forward && discounted) scan_way(x, n, discount, 1, 1);
    else if (forward) scan_way(x, n, discount, 1, 0);
    else if (discounted) scan_way(x, n, discount, 0, 1);
    else scan_way(x, n, discount, 0, 0);
}

/* Sums in order over each target, of elements of `parts` strata in one order, for the elements of stratum `into`.
   Elements are numbered one stratum after another. A stratum without a vector x has the number `same` everywhere. */
static void scans(double *out, int into, int parts, const double *const *x, const double *same, const int64_t *sizes,
                  const int64_t *order, const int64_t *members, double discount, int forward, int64_t targets,
                  int threads)
{
    (void)threads;
    int64_t first = 0;
    for (int p = 0; p < into; p++) first += sizes[p];
#pragma omp parallel for schedule(dynamic, 16) num_threads(threads) if (members[targets] > LONG)
    for (int64_t b = 0; b < targets; b++) {
        const int64_t from = members[b], n = members[b + 1] - from;
        ROOM_IN_ORDER(room, n)
        for (int64_t k = 0; k < n; k++) {
            int64_t element = order ? order[from + k] : from + k;
            int p = 0;
            while (p + 1 < parts && element >= sizes[p]) element -= sizes[p++];
            room[k] = x[p] ? x[p][element] : same[p];
        }
        scan(room, n, discount, forward);
        for (int64_t k = 0; k < n; k++) {
            const int64_t element = (order ? order[from + k] : from + k) - first;
            if (element >= 0 && element < sizes[into]) out[element] = room[forward ? k - 1 : k + 1];
        }
    }
}
