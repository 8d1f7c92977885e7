/* Sums and maxima over fibres. Their order is fixed: no bit depends on the number of threads, or on a processor's vectors.
   Values are summed in lanes: lane k sums the values k, k + n, k + 2 n, ... of n lanes. Then each half of the lanes is
   added to the other half. */

#define NONE_sum 0
#define NONE_max (-INFINITY)
#define JOIN_sum(KIND, a, b) ((a) + (b))
#define JOIN_max(KIND, a, b) larger_##KIND(a, b)
#define HALVE(n, HOW, KIND) \
    if (lanes >= 2 * n) _Pragma("omp simd") for (int k = 0; k < n; k++) x[k] = JOIN_##HOW(KIND, x[k], x[k + n]);
#define LANES_PUSH(HOW, KIND)                                                                                      \
    MATH KIND HOW##_##KIND(KIND *x, int lanes)                                                                     \
    {                                                                                                              \
        HALVE(16, HOW, KIND) HALVE(8, HOW, KIND) HALVE(4, HOW, KIND) HALVE(2, HOW, KIND) HALVE(1, HOW, KIND)       \
        return x[0];                                                                                               \
    }                                                                                                              \
    /* the same for short segments, one after another, of at most `longest` tokens */                              \
    MATH void HOW##_rows_##KIND##_of(double *to, const KIND *x, const int64_t *offsets, int64_t rows, int lanes)   \
    {                                                                                                              \
        for (int64_t r = 0; r < rows; r++) {                                                                       \
            const int64_t at = offsets[r] - offsets[0], n = offsets[r + 1] - offsets[r];                           \
            KIND part[LANES];                                                                                      \
            _Pragma("omp simd") for (int k = 0; k < lanes; k++) part[k] = k < n ? x[at + k] : NONE_##HOW;          \
            to[r] = JOIN_##HOW(double, NONE_##HOW, HOW##_##KIND(part, lanes));                                     \
        }                                                                                                          \
    }                                                                                                              \
    static inline void HOW##_rows_##KIND(                                                                          \
        double *to, const KIND *x, const int64_t *offsets, int64_t rows, int64_t longest)                          \
    {                                                                                                              \
        if (longest == 1 && offsets[rows] - offsets[0] == rows)                                                    \
            _Pragma("omp simd") for (int64_t r = 0; r < rows; r++) to[r] = JOIN_##HOW(double, NONE_##HOW, x[r]);   \
        else if (longest <= 2) HOW##_rows_##KIND##_of(to, x, offsets, rows, 2);                                    \
        else if (longest <= 4) HOW##_rows_##KIND##_of(to, x, offsets, rows, 4);                                    \
        else if (longest <= 8) HOW##_rows_##KIND##_of(to, x, offsets, rows, 8);                                    \
        else HOW##_rows_##KIND##_of(to, x, offsets, rows, LANES);                                                  \
    }
LANES_PUSH(sum, double)
LANES_PUSH(sum, real)
LANES_PUSH(max, double)
LANES_PUSH(max, real)

/* Over the elements from `from` to `to` of an order. */
#define EIGHT(HOW, place) for (int k = 0; k < 8; k++) lanes[k] = JOIN_##HOW(double, lanes[k], x[place]);
#define FIBRE(HOW)                                                                                                 \
    static double HOW(const double *x, const int64_t *order, int64_t from, int64_t to)                             \
    {                                                                                                              \
        double lanes[8];                                                                                           \
        const int64_t whole = to - (to - from) % 8, others = to - whole;                                           \
        for (int k = 0; k < 8; k++) lanes[k] = NONE_##HOW;                                                         \
        for (int64_t at = from; at < whole; at += 8)                                                               \
            if (order) EIGHT(HOW, order[at + k])                                                                   \
            else EIGHT(HOW, at + k)                                                                                \
        for (int64_t k = 0; k < others; k++)                                                                       \
            lanes[k] = JOIN_##HOW(double, lanes[k], x[order ? order[whole + k] : whole + k]);                      \
        return HOW##_double(lanes, 8);                                                                             \
    }
FIBRE(sum)
FIBRE(max)

/* What is taken of a vector x over the fibres of every target: {sum, to, x} or {max, to, x}. */
typedef struct {
    double (*over)(const double *, const int64_t *, int64_t, int64_t), *to;
    const double *x;
} Push;
#define PUSH(order, members, targets, ...) \
    push((const Push[]){__VA_ARGS__}, sizeof((const Push[]){__VA_ARGS__}) / sizeof(Push), order, members, targets, threads)
static void push(
    const Push *all, size_t number, const int64_t *order, const int64_t *members, int64_t targets, int threads)
{
    (void)threads;
    _Pragma("omp parallel for collapse(2) schedule(dynamic, 1 + targets / 64) num_threads(threads) if (members[targets] > LONG)")
    for (size_t v = 0; v < number; v++)
        for (int64_t b = 0; b < targets; b++)
            all[v].to[b] = all[v].over(all[v].x, order, members[b], members[b + 1]);
}

/* The product of x and a matrix [rows, columns], whose places are `down` and `right` apart. */
static void mix(double *out, const double *matrix, int64_t down, int64_t right, const double *x, int64_t rows,
                int64_t columns, int threads)
{
    (void)threads;
    _Pragma("omp parallel for num_threads(threads) if (rows * columns > LONG)")
    for (int64_t b = 0; b < rows; b++) {
        double total = 0;
        for (int64_t a = 0; a < columns; a++) total += matrix[b * down + a * right] * x[a];
        out[b] = total;
    }
}
