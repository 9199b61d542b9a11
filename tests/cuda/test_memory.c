/* Sizes of device memory and refused arguments, without a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/layout.h"
#include <mok/mok_cuda_ranks.h>

static mok_layer_config layer_config(void)
{
    mok_layer_config config;
    mok_layer_config_init(&config);
    config.hidden = 64;
    config.intermediate = 48;
    config.shared_intermediate = 32;
    config.experts = 7;
    config.slots = 2;
    config.max_tokens = 100;
    return config;
}

static mok_cuda_config cuda_config(void)
{
    mok_cuda_config cuda;
    mok_cuda_config_init(&cuda);
    return cuda;
}

static void sizes_are_those_of_the_layout(void **state)
{
    (void)state;
    const mok_layer_config config = layer_config();
    const mok_cuda_config cuda = cuda_config();
    for (int32_t ranks = 1; ranks <= MOK_CUDA_MAX_RANKS; ranks++) {
        for (int32_t rank = 0; rank < ranks; rank++) {
            mok_shape shape;
            mok_cuda_layout apart;
            mok_cuda_layout together;
            size_t bytes = 0;
            assert_int_equal(mok_cuda_memory_bytes(&bytes, &config, &cuda, 132, rank, ranks),
                             MOK_OK);
            assert_int_equal(mok_cuda_shape_make(&shape, &config, ranks, rank, 132), MOK_OK);
            assert_true(mok_cuda_layout_make(&apart, &shape, false, true));
            assert_true(mok_cuda_layout_make(&together, &shape, false, false));
            assert_int_equal(bytes, apart.bytes);
            assert_true(apart.bytes >= together.bytes + 100 * 64 * 2 + 3 * 100 * 2 * 4);
            /* Peers find what they poll and what they plan with at the same places. */
            assert_int_equal(apart.slot, together.slot);
            assert_true(mok_cuda_plan_begin(&apart) <= apart.peer_rank);
            assert_true(apart.list_count + 3 * sizeof(int32_t) <=
                        mok_cuda_plan_begin(&apart) + mok_cuda_plan_bytes(&apart));
            assert_true(apart.received_weights + 100 * 2 * 4 <= apart.bytes);
        }
    }
}

static void arguments_are_checked(void **state)
{
    (void)state;
    mok_layer_config config = layer_config();
    mok_cuda_config cuda = cuda_config();
    size_t bytes = 0;
    assert_int_equal(mok_cuda_memory_bytes(NULL, &config, &cuda, 132, 0, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_cuda_memory_bytes(&bytes, NULL, &cuda, 132, 0, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_cuda_memory_bytes(&bytes, &config, NULL, 132, 0, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_cuda_memory_bytes(&bytes, &config, &cuda, 1, 0, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_cuda_memory_bytes(&bytes, &config, &cuda, 132, 1, 1), MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_cuda_memory_bytes(&bytes, &config, &cuda, 132, 0, 9), MOK_ERROR_ARGUMENT);
    cuda.struct_bytes--;
    assert_int_equal(mok_cuda_memory_bytes(&bytes, &config, &cuda, 132, 0, 1), MOK_ERROR_ARGUMENT);
    cuda.struct_bytes++;
    config.hidden = 60;
    assert_int_equal(mok_cuda_memory_bytes(&bytes, &config, &cuda, 132, 0, 1), MOK_ERROR_SHAPE);
}

/* Without a communicator, or with a description that is not one, nothing is opened and nobody
 * waits. */
static void opening_refuses_what_it_cannot_use(void **state)
{
    (void)state;
    const mok_layer_config config = layer_config();
    const mok_cuda_config cuda = cuda_config();
    mok_cuda_layer *layer = NULL;
    mok_cuda_memory memory;
    mok_comm *comm[1] = {NULL};
    assert_int_equal(mok_cuda_layer_open_ranks(NULL, &config, &cuda, NULL, NULL),
                     MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_cuda_layer_open_ranks(&layer, &config, &cuda, NULL, NULL),
                     MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_comm_open_local(comm, 1, NULL), MOK_OK);
    mok_cuda_memory_init(&memory);
    memory.struct_bytes = 3;
    assert_int_equal(mok_cuda_layer_open_ranks(&layer, &config, &cuda, comm[0], &memory),
                     MOK_ERROR_ARGUMENT);
    mok_cuda_memory_init(&memory);
    memory.mapping = (mok_cuda_mapping)7;
    assert_int_equal(mok_cuda_layer_open_ranks(&layer, &config, &cuda, comm[0], &memory),
                     MOK_ERROR_ARGUMENT);
    assert_int_equal(mok_cuda_layer_open_ranks(&layer, &config, NULL, comm[0], NULL),
                     MOK_ERROR_ARGUMENT);
    assert_null(layer);
    mok_cuda_memory_init(NULL);
    mok_comm_close(&comm[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_those_of_the_layout),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(opening_refuses_what_it_cannot_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
