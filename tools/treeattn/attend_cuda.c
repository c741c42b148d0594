/* SPDX-License-Identifier: Apache-2.0 */
/* One layer on a GPU for somebody whose tensors are in files: buffers, the image, one run, its status word. */
#include "attend_cuda.h"

#include <stdint.h>
#include <stdlib.h>

#include "cli.h"
#include "cuda_memory.h"

int attend_cuda_find_device(treeattn_cuda_device *device) {
  treeattn_error error;
  int32_t count = 0;
  const treeattn_cuda_device fresh = TREEATTN_CUDA_DEVICE_INIT;
  *device = fresh;
  if (treeattn_cuda_device_count(&count, &error) != TREEATTN_OK) {
    return cli_library_error("--backend cuda", &error);
  }
  if (count == 0) {
    return cli_error("--backend cuda: there is no CUDA device, or no driver for it");
  }
  if (treeattn_cuda_get_device(0, device, &error) != TREEATTN_OK) {
    return cli_library_error("--backend cuda", &error);
  }
  if (!device->usable) {
    return cli_error("--backend cuda: %s: %s", device->name, device->reason);
  }
  return CLI_OK;
}

enum {
  BUFFER_Q,
  BUFFER_K,
  BUFFER_V,
  BUFFER_SINKS,
  BUFFER_IMAGE,
  BUFFER_OUT,
  BUFFER_LSE,
  BUFFER_SCRATCH,
  BUFFER_STATUS,
  NUM_BUFFERS
};

typedef struct buffer {
  const char *name;
  const void *host; /* NULL: nothing to bring */
  size_t bytes;
  void *device;
} buffer;

static bool bring(buffer *buffers) {
  for (int n = 0; n < NUM_BUFFERS; ++n) {
    buffer *one = &buffers[n];
    if (!cuda_memory_alloc(one->name, one->bytes, &one->device) ||
        (one->host != NULL && !cuda_memory_upload(one->name, one->device, one->host, one->bytes))) {
      return false;
    }
  }
  return true;
}

static int launch(const treeattn_plan *plan, const treeattn_cuda_options *options, const buffer *buffers,
                  double *seconds) {
  treeattn_cuda_run_args run = TREEATTN_CUDA_RUN_ARGS_INIT;
  run.q = buffers[BUFFER_Q].device;
  run.q_bytes = buffers[BUFFER_Q].bytes;
  run.k = buffers[BUFFER_K].device;
  run.k_bytes = buffers[BUFFER_K].bytes;
  run.v = buffers[BUFFER_V].device;
  run.v_bytes = buffers[BUFFER_V].bytes;
  run.sinks = buffers[BUFFER_SINKS].device;
  run.sinks_bytes = buffers[BUFFER_SINKS].bytes;
  run.image = buffers[BUFFER_IMAGE].device;
  run.image_bytes = buffers[BUFFER_IMAGE].bytes;
  run.out = buffers[BUFFER_OUT].device;
  run.out_bytes = buffers[BUFFER_OUT].bytes;
  run.lse = buffers[BUFFER_LSE].device;
  run.lse_bytes = buffers[BUFFER_LSE].bytes;
  run.scratch = buffers[BUFFER_SCRATCH].device;
  run.scratch_bytes = buffers[BUFFER_SCRATCH].bytes;
  run.status = buffers[BUFFER_STATUS].device;
  treeattn_error error;
  const double started = cli_seconds();
  if (treeattn_cuda_attend(plan, options, &run, &error) != TREEATTN_OK) {
    return cli_library_error(NULL, &error);
  }
  if (!cuda_memory_wait()) {
    return CLI_FAILURE;
  }
  *seconds = cli_seconds() - started;
  int32_t status = 0;
  if (!cuda_memory_download("status", &status, buffers[BUFFER_STATUS].device, sizeof status)) {
    return CLI_FAILURE;
  }
  return status == TREEATTN_OK ? CLI_OK : cli_error("the run refused its image with status %d", (int)status);
}

int attend_cuda_run(const treeattn_plan *plan, const treeattn_run_args *run, double *seconds) {
  const treeattn_cuda_options options = TREEATTN_CUDA_OPTIONS_INIT;
  treeattn_cuda_needs needs = TREEATTN_CUDA_NEEDS_INIT;
  treeattn_error error;
  if (treeattn_cuda_get_needs(plan, &options, &needs, &error) != TREEATTN_OK) {
    return cli_library_error(NULL, &error);
  }
  void *image = cli_malloc(needs.image_bytes); /* malloc's alignment is the 16 that an image needs */
  if (image == NULL) {
    return cli_out_of_memory();
  }
  const int32_t no_status = -1;
  buffer buffers[NUM_BUFFERS] = {
      [BUFFER_Q] = {"q", run->q, run->q_bytes, NULL},
      [BUFFER_K] = {"k", run->k, run->k_bytes, NULL},
      [BUFFER_V] = {"v", run->v, run->v_bytes, NULL},
      [BUFFER_SINKS] = {"sinks", run->sinks, run->sinks_bytes, NULL},
      [BUFFER_IMAGE] = {"image", image, needs.image_bytes, NULL},
      [BUFFER_OUT] = {"out", NULL, run->out_bytes, NULL},
      [BUFFER_LSE] = {"lse", NULL, run->lse_bytes, NULL},
      [BUFFER_SCRATCH] = {"scratch", NULL, needs.scratch_bytes, NULL},
      [BUFFER_STATUS] = {"status", &no_status, sizeof no_status, NULL},
  };
  int status = CLI_OK;
  if (treeattn_cuda_write_image(plan, &options, image, needs.image_bytes, &error) != TREEATTN_OK) {
    status = cli_library_error(NULL, &error);
  } else {
    status = bring(buffers) ? CLI_OK : CLI_FAILURE;
  }
  *seconds = 0.0;
  /* A plan without nodes writes nothing, not even its status word. */
  if (status == CLI_OK && run->out_bytes > 0) {
    status = launch(plan, &options, buffers, seconds);
  }
  if (status == CLI_OK && !(cuda_memory_download("out", run->out, buffers[BUFFER_OUT].device, run->out_bytes) &&
                            cuda_memory_download("lse", run->lse, buffers[BUFFER_LSE].device, run->lse_bytes))) {
    status = CLI_FAILURE;
  }
  for (int n = 0; n < NUM_BUFFERS; ++n) {
    if (buffers[n].device != NULL) {
      cuda_memory_free(buffers[n].device);
    }
  }
  cli_free(image);
  return status;
}
