/* Sums and maxima over fibres. Their order is fixed: no bit depends on the number of threads, or on a processor's vectors.
   Values are summed in lanes: lane k sums the values k, k + n, k + 2 n, ... of n lanes. Then each half of the lanes is
   added to the other half. */

#define HALVE(n, JOIN) \
    if (lanes >= 2 * n) _Pragma("omp simd") for (int k = 0; k < n; k++) x[k] = JOIN(x[k], x[k + n]);
#define LANES_PUSH(NAME, KIND, JOIN)                                                                               \
    MATH KIND NAME(KIND *x, int lanes)                                                                             \
    {                                                                                                              \
        HALVE(16, JOIN) HALVE(8, JOIN) HALVE(4, JOIN) HALVE(2, JOIN) HALVE(1, JOIN)                                \
        return x[0];                                                                                               \
    }
#define PLUS(a, b) ((a) + (b))
LANES_PUSH(sum_double, double, PLUS)
LANES_PUSH(sum_real, real, PLUS)
LANES_PUSH(max_double, ordered_f64, MORE)
LANES_PUSH(max_real, ordered_real, MORE)

/* The same for short segments, one after another, of at most `longest` tokens. Their other lanes would add 0. */
#define ROWS_PUSH(NAME, OF, KIND, LANE, NONE, IN, OUT)                                                             \
    MATH void NAME##_of(double *to, const KIND *x, const int64_t *offsets, int64_t rows, int lanes)                \
    {                                                                                                              \
        for (int64_t r = 0; r < rows; r++) {                                                                       \
            const int64_t at = offsets[r] - offsets[0], n = offsets[r + 1] - offsets[r];                           \
            LANE part[LANES];                                                                                      \
            _Pragma("omp simd") for (int k = 0; k < lanes; k++) part[k] = k < n ? IN(x[at + k]) : NONE;            \
            to[r] = OUT(OF(part, lanes));                                                                          \
        }                                                                                                          \
    }                                                                                                              \
    static inline void NAME(double *to, const KIND *x, const int64_t *offsets, int64_t rows, int64_t longest)      \
    {                                                                                                              \
        if (longest == 1 && offsets[rows] - offsets[0] == rows)                                                    \
            _Pragma("omp simd") for (int64_t r = 0; r < rows; r++) to[r] = OUT(IN(x[r]));                          \
        else if (longest <= 2) NAME##_of(to, x, offsets, rows, 2);                                                 \
        else if (longest <= 4) NAME##_of(to, x, offsets, rows, 4);                                                 \
        else if (longest <= 8) NAME##_of(to, x, offsets, rows, 8);                                                 \
        else NAME##_of(to, x, offsets, rows, LANES);                                                               \
    }
#define FROM_0(x) (0 + (x)) /* -0 becomes 0, as in a sum that begins with 0 */
#define SAME(x) (x)
ROWS_PUSH(sum_rows_double, sum_double, double, double, 0, SAME, FROM_0)
ROWS_PUSH(sum_rows_real, sum_real, real, real, 0, SAME, FROM_0)
ROWS_PUSH(max_rows_double, max_double, double, ordered_f64, order_f64(-INFINITY), order_f64, unorder_f64)
ROWS_PUSH(max_rows_real, max_real, real, ordered_real, order_real(-INFINITY), order_real, unorder_real)

/* Over the elements from `from` to `to` of an order. A maximum passes NaN over. */
#define EIGHT(JOIN, place) for (int k = 0; k < 8; k++) lanes[k] = JOIN(x[place], lanes[k]);
#define FIBRE(NAME, START, JOIN)                                                                                   \
    static double NAME(const double *x, const int64_t *order, int64_t from, int64_t to)                            \
    {                                                                                                              \
        double lanes[8];                                                                                           \
        const int64_t whole = to - (to - from) % 8;                                                                \
        for (int k = 0; k < 8; k++) lanes[k] = START;                                                              \
        for (int64_t at = from; at < whole; at += 8)                                                               \
            if (order) EIGHT(JOIN, order[at + k])                                                                  \
            else EIGHT(JOIN, at + k)                                                                               \
        for (int64_t k = whole; k < to; k++) lanes[k - whole] = JOIN(x[order ? order[k] : k], lanes[k - whole]);   \
        for (int n = 4; n; n /= 2)                                                                                 \
            for (int k = 0; k < n; k++) lanes[k] = JOIN(lanes[k], lanes[k + n]);                                   \
        return lanes[0];                                                                                           \
    }
FIBRE(sum, 0, PLUS)
FIBRE(max, -INFINITY, MORE)

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
