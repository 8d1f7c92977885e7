#define SHORT 2048 /* tokens whose values fit on a thread's stack: memory from malloc costs more than their sums */

/* Memory for one call. */
static double *reserve(int64_t numbers)
{
    double *room = __builtin_malloc((size_t)(numbers + 1) * sizeof(double));
    if (!room) __builtin_abort();
    return room;
}

/* `small`, which has space for `size` numbers, or memory for more. */
static double *reserve_beyond(double *small, int64_t size, int64_t numbers)
{
    return numbers <= size ? small : reserve(numbers);
}

static void release(double *room, const double *small)
{
    if (room != small) __builtin_free(room);
}
