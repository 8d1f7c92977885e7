/* How a sweep visits its segments, here called rows, and their tokens. It takes one row after another; or, if all rows
   are short, a block of up to ROWS rows at once, because a loop over few tokens is scalar code. Numbers of rows lie in
   arrays of ROWS numbers, in both ways. No bit depends on the way. A sweep defines BLOCKS and ROWS. */

#define MOST_ROWS 32
#define BLOCK (MOST_ROWS * LANES) /* the most tokens of a block */
#define NEAR 16384 /* tokens of a row while whose passes the second cache keeps the next row */
#define GRAIN(segments, tokens) (BLOCKS ? 16 : 1 + (segments) * LONG / (1 + (tokens)) / 2)
#define AT(S, i) (WHOLE_##S ? start + (i) : S##_positions[first + (i)]) /* the place of token i */
#define TOKEN(S, i) (COUNTED_##S ? first + (i) : S##_tokens[first + (i)]) /* its number */
#define ROW(x) (x)[BLOCKS ? i : 0] /* what SPREAD has made of a number of token i's row */
#define EACH_BLOCK(n) \
    for (int64_t block = 0; block < (n); block += ROWS) \
        for (int64_t b = block, rows = 1; b < (n) && b < block + ROWS; b += rows)
#define EACH_ROW _Pragma("omp simd") for (int64_t r = 0; r < rows; r++)

/* The rows from b on that lie side by side, and their tokens. */
#define ROWS_FROM(S, n)                                                                                            \
    const int64_t *const offsets = S##_offsets + b, first = offsets[0], start = S##_starts[b];                     \
    if (BLOCKS) rows = rows_in_line(offsets, S##_starts + b, (n) < block + ROWS ? (n) - b : block + ROWS - b);     \
    const int64_t tokens = offsets[rows] - first, longest = BLOCKS ? longest_of(offsets, rows) : tokens;           \
    const int64_t ahead = b + rows < (n) && tokens < NEAR ? S##_starts[b + rows] - start : 0; /* to the next row */
static inline int64_t rows_in_line(const int64_t *offsets, const int64_t *starts, int64_t most)
{
    int64_t n = 1;
    while (n < most && starts[n] - starts[0] == offsets[n] - offsets[0]) n++;
    return n;
}
static inline int64_t longest_of(const int64_t *offsets, int64_t n)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < n; b++) longest = MORE(longest, offsets[b + 1] - offsets[b]);
    return longest;
}

/* Fills the masked places before and after rows. */
#define FILL_GAPS(S, n, array)                                                                                     \
    if (WHOLE_##S && COUNTED_##S) {                                                                                \
        if (!b) { FILL_GAP(array, 0, start); }                                                                     \
        FILL_GAP(array, start + tokens, b + rows < (n) ? S##_starts[b + rows] : places);                           \
    }

/* A number of each row, for the row's tokens. In a block it fills whole vectors: the next row comes after it. */
#define SPREAD_IF(READ, KIND, to, value)                                                                           \
    KIND to[BLOCKS ? BLOCK + LANES : 1];                                                                           \
    if (READ)                                                                                                      \
        for (int64_t r = 0; r < rows; r++) {                                                                       \
            const KIND x = (KIND)(value);                                                                          \
            for (int k = 0; k < (BLOCKS ? LANES : 1); k++) to[(BLOCKS ? offsets[r] - first : 0) + k] = x;          \
        }
#define SPREAD(KIND, to, value) SPREAD_IF(1, KIND, to, value)

/* A pass over the tokens: statements for token i, a list of what is summed, and NEXT, what is fetched. An entry EACH(sum, real, values, to, x)
   adds up x of each row's tokens in the array `to`; `values` is memory for that. A row is cut into chunks, which are
   summed in lanes: the whole groups of lanes first, then the other tokens. In a block, all x are stored first, and then
   summed row by row. */
#define PASS(SUMS, NEXT, ...)                                                                                      \
    SUMS(BEGIN)                                                                                                    \
    if (BLOCKS) {                                                                                                  \
        SUMS(VALUES)                                                                                               \
        _Pragma("omp simd") for (int64_t i = 0; i < tokens; i++) { __VA_ARGS__ SUMS(KEEP) }                        \
        SUMS(ADD_ROWS)                                                                                             \
    } else                                                                                                         \
        for (int64_t at = 0; at < tokens; at += CHUNK) {                                                           \
            const int64_t to = at + CHUNK < tokens ? at + CHUNK : tokens;                                          \
            const int64_t others = (to - at) % LANES, whole = to - others;                                         \
            SUMS(IN_LANES)                                                                                         \
            for (int64_t group = at; group < whole; group += LANES) {                                              \
                NEXT                                                                                               \
                _Pragma("GCC unroll 4") for (int lane = 0; lane < LANES; lane += ABREAST) {                        \
                    _Pragma("omp simd") for (int k = lane; k < lane + ABREAST; k++) {                              \
                        const int64_t i = group + k;                                                               \
                        __VA_ARGS__                                                                                \
                        SUMS(ADD)                                                                                  \
                    }                                                                                              \
                }                                                                                                  \
            }                                                                                                      \
            if (others)                                                                                            \
                _Pragma("omp simd") for (int k = 0; k < LANES; k++) if (k < others) {                              \
                    const int64_t i = whole + k;                                                                   \
                    __VA_ARGS__                                                                                    \
                    SUMS(ADD)                                                                                      \
                }                                                                                                  \
            SUMS(ADD_UP)                                                                                           \
        }
#define NOTHING(EACH)
/* Asks for tokens of the next row. A pass that neither reads a row first nor writes to it leaves memory idle. */
#define FETCH(array) __builtin_prefetch((array) + start + group + ahead, 0, 2);
#if METRICS
#define IF_METRICS(...) __VA_ARGS__
#else
#define IF_METRICS(...)
#endif

/* What PASS does with an entry. */
#define BEGIN(HOW, KIND, values, to, x) (to)[0] = NONE_##HOW;
#define VALUES(HOW, KIND, values, to, x) KIND values[BLOCK + LANES];
#define KEEP(HOW, KIND, values, to, x) values[i] = x;
#define ADD_ROWS(HOW, KIND, values, to, x) HOW##_rows_##KIND(to, values, offsets, rows, longest);
#define IN_LANES(HOW, KIND, values, to, x)                                                                         \
    KIND values[LANES];                                                                                            \
    for (int k = 0; k < LANES; k++) values[k] = NONE_##HOW;
#define ADD(HOW, KIND, values, to, x) values[k] = JOIN_##HOW(KIND, values[k], x);
#define ADD_UP(HOW, KIND, values, to, x) (to)[0] = JOIN_##HOW(double, (to)[0], HOW##_##KIND(values, LANES));
