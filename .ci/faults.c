/* Functions that are wrong on purpose: sanitize.py sees that each of them is caught. */

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

static volatile int sink, many = 2147483647, wide = 40;
static volatile double large = 1e300;

void nothing(void)
{
}

void past_the_end(void)
{
    volatile int *words = malloc(4 * sizeof(int));
    sink = words[4];
}

void after_free(void)
{
    volatile int *words = malloc(4 * sizeof(int));
    free((void *)words);
    sink = words[0];
}

void overflow(void)
{
    many = many + 1;
}

void shift(void)
{
    sink = 1 << wide;
}

void misaligned(void)
{
    static char bytes[16] __attribute__((aligned(8)));
    sink = *(volatile int *)(bytes + 1);
}

void cast(void)
{
    sink = (int)large;
}

static int shared;

static void *add(void *unused)
{
    for (int i = 0; i < 100000; i++)
        shared++;
    return unused;
}

void race(void)
{
    pthread_t other;
    pthread_create(&other, NULL, add, NULL);
    add(NULL);
    pthread_join(other, NULL);
}
