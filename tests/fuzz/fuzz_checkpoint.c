/* Fuzz target: bytes are a checkpoint's header, as state_load hands it over. Whatever they say, the
 * answer is a status with a text. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[TRAIN_WHY_BYTES] = "";
    train_config config;
    state_facts facts;
    if (train_config_init(&config, "tiny", why) != MOK_OK) {
        abort();
    }
    why[0] = '\0';
    const mok_status status = state_header_read(&facts, (const char *)data, size, &config, why);
    if (status != MOK_OK && why[0] == '\0') {
        abort();
    }
    if (status == MOK_OK && facts.step < 0) {
        abort();
    }
    return 0;
}
