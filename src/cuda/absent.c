/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA back end's entry points in a build without it: each says so. */
#include <treeattn/treeattn_cuda.h>

#include "../common.h"

#define ABSENT ta_fail(error, TREEATTN_ERROR_UNSUPPORTED, "this build has no CUDA back end (TREEATTN_CUDA is off)")

int treeattn_cuda_compiled(void) {
  return 0;
}

treeattn_status treeattn_cuda_device_count(int32_t *count, treeattn_error *error) {
  (void)count;
  return ABSENT;
}

treeattn_status treeattn_cuda_get_device(int32_t index, treeattn_cuda_device *device, treeattn_error *error) {
  (void)index;
  (void)device;
  return ABSENT;
}

treeattn_status treeattn_cuda_get_needs(const treeattn_plan *plan, const treeattn_cuda_options *options,
                                        treeattn_cuda_needs *needs, treeattn_error *error) {
  (void)plan;
  (void)options;
  (void)needs;
  return ABSENT;
}

treeattn_status treeattn_cuda_write_image(const treeattn_plan *plan, const treeattn_cuda_options *options, void *image,
                                          size_t image_bytes, treeattn_error *error) {
  (void)plan;
  (void)options;
  (void)image;
  (void)image_bytes;
  return ABSENT;
}

treeattn_status treeattn_cuda_attend(const treeattn_plan *plan, const treeattn_cuda_options *options,
                                     const treeattn_cuda_run_args *run, treeattn_error *error) {
  (void)plan;
  (void)options;
  (void)run;
  return ABSENT;
}
