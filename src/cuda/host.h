/* SPDX-License-Identifier: Apache-2.0 */
/* What the host side of the CUDA back end shares: the settings of a run and the way from a plan to an image. */
#ifndef TA_CUDA_HOST_H
#define TA_CUDA_HOST_H

#include <treeattn/treeattn_cuda.h>

#include "../plan.h"
#include "image.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Options with their defaults filled in. */
typedef struct ta_cuda_settings {
  int32_t num_multiprocessors;
  int32_t block_rows;
  int32_t tile; /* the shared range ends at a multiple of it: TA_LEAF or TA_IMAGE_TILE */
} ta_cuda_settings;

/* Fills *header; with `image` not NULL also writes the image, of which header->image_bytes must be there. */
TA_HIDDEN treeattn_status ta_cuda_lay_out_image(const treeattn_plan *plan, const ta_cuda_settings *settings,
                                                void *image, ta_image_header *header, treeattn_error *error);

#ifdef __cplusplus
}
#endif
#endif
