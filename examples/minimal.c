/* One MoE layer on two ranks of this process: forward, and a digest of the result. */
#include <mok/mok.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { T = 64, H = 32, I = 48, E = 4, K = 2, RANKS = 2 };
static uint16_t x[T * H], y[T * H], gate[E * I * H], up[E * I * H], down[E * H * I];
static int32_t routes[T * K];
static float router_weights[T * K];

static void must(mok_status status)
{
    if (status != MOK_OK) {
        (void)fprintf(stderr, "%s: %s\n", mok_status_string(status), mok_last_error());
        exit(1);
    }
}

static void *rank_main(void *context) /* a rank holds T / RANKS tokens and E / RANKS experts */
{
    mok_comm *comm = context;
    const int64_t r = mok_comm_rank(comm), t = T / RANKS, e = E / RANKS;
    mok_layer *layer = NULL;
    mok_schedule *schedule = NULL;
    mok_activations *kept = NULL;
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.hidden = H, config.intermediate = I, config.experts = E, config.slots = K,
    config.max_tokens = t;
    must(mok_layer_open(&layer, comm, &config));
    must(mok_schedule_open(&schedule, layer));
    must(mok_activations_open(&kept, layer));
    mok_weights_view w;
    mok_weights_view_init(&w);
    w.gate = mok_tensor_3d(gate + r * e * I * H, MOK_DTYPE_BF16, e, I, H);
    w.up = mok_tensor_3d(up + r * e * I * H, MOK_DTYPE_BF16, e, I, H);
    w.down = mok_tensor_3d(down + r * e * H * I, MOK_DTYPE_BF16, e, H, I);
    const mok_tensor in = mok_tensor_2d(x + r * t * H, MOK_DTYPE_BF16, t, H);
    const mok_tensor out = mok_tensor_2d(y + r * t * H, MOK_DTYPE_BF16, t, H);
    const mok_tensor ids = mok_tensor_2d(routes + r * t * K, MOK_DTYPE_I32, t, K);
    const mok_tensor weights = mok_tensor_2d(router_weights + r * t * K, MOK_DTYPE_F32, t, K);
    must(mok_schedule_build(schedule, layer, &ids));
    must(mok_forward(layer, kept, &out, schedule, &in, &weights, &w));
    mok_activations_close(&kept);
    mok_schedule_close(&schedule);
    mok_layer_close(&layer);
    return NULL;
}

static void fill(uint16_t *values, int count) /* multiples of 1/8 in [-1, 1) as bf16 */
{
    static const uint16_t eighths[8] = {0x0000, 0x3E00, 0x3E80, 0x3EC0,
                                        0xBF00, 0xBE80, 0x3F40, 0xBF80};
    for (int i = 0; i < count; i++) {
        values[i] = eighths[(unsigned)i * 2654435761u >> 29];
    }
}

int main(void)
{
    mok_comm *comm[RANKS];
    pthread_t threads[RANKS];
    mok_digest digest;
    char hex[MOK_DIGEST_HEX_BYTES];
    fill(x, T * H), fill(gate, E * I * H), fill(up, E * I * H), fill(down, E * H * I);
    for (int i = 0; i < T * K; i++) {
        routes[i] = (i + i / 7) % E, router_weights[i] = 0.5f;
    }
    must(mok_comm_open_local(comm, RANKS, NULL));
    for (int r = 0; r < RANKS; r++) {
        (void)pthread_create(&threads[r], NULL, rank_main, comm[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        (void)pthread_join(threads[r], NULL);
        mok_comm_close(&comm[r]);
    }
    const mok_tensor all = mok_tensor_2d(y, MOK_DTYPE_BF16, T, H);
    must(mok_digest_tensor(&digest, &all, MOK_ARITH_TC16));
    mok_digest_hex(hex, &digest);
    (void)printf("%s\n", hex);
    return 0;
}
