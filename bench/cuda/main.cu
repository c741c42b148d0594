/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA back end's table: time, rates, share of the floor, scratch and error of each workload. */
#include <cuda_runtime.h>
#include <getopt.h>

#include <cstring>

#include "bench.h"
#include "fill.h"

static const Workload workloads[] = {
    {"G1", 32, 8, 128, 64, 32768}, {"G2", 32, 8, 128, 16, 131072}, {"G3", 40, 8, 128, 64, 8192},
    {"G4", 16, 8, 256, 64, 16384}, {"G5", 32, 8, 128, 1, 32768},   {"G6", 32, 8, 128, 256, 8192},
    {"G7", 16, 2, 512, 32, 8192},
};

static const char help[] =
    "Usage: treeattn-cuda-bench [OPTION]...\n"
    "Times the CUDA back end over sets of inputs that do not fit in the L2 cache.\n"
    "\n"
    "  --rows LIST            G1 to G7, comma-separated (default: all)\n"
    "  --types LIST           f16, bf16 (default: both)\n"
    "  --modes LIST           fast, exact (default: both)\n"
    "  --repeat N             replays of which the median is taken (default: 21)\n"
    "  --block-rows N         64 or 128 (default: chosen by the library)\n"
    "  --multiprocessors N    cut for so many (default: the device's)\n"
    "  --flop-rate T          TFLOP/s of the floor (default: 671, a large f16 product through PyTorch on an H200)\n"
    "  --no-steps             leave out expand, verify and commit\n"
    "  --json FILE            also write the results there\n";

static bool listed(const std::string &list, const char *name) {
  return ("," + list + ",").find("," + std::string(name) + ",") != std::string::npos;
}

int main(int argc, char **argv) {
  static const struct option long_options[] = {
      {"rows", required_argument, nullptr, 'r'},       {"types", required_argument, nullptr, 't'},
      {"modes", required_argument, nullptr, 'm'},      {"repeat", required_argument, nullptr, 'n'},
      {"block-rows", required_argument, nullptr, 'b'}, {"multiprocessors", required_argument, nullptr, 's'},
      {"flop-rate", required_argument, nullptr, 'f'},  {"json", required_argument, nullptr, 'j'},
      {"no-steps", no_argument, nullptr, 'x'},         {"help", no_argument, nullptr, 'h'},
      {nullptr, 0, nullptr, 0}};
  std::string rows = "G1,G2,G3,G4,G5,G6,G7", types = "f16,bf16", modes = "fast,exact";
  const char *json_path = nullptr;
  int repeat = 21;
  bool steps = true;
  double flop_rate = 671e12;
  treeattn_cuda_options cut = TREEATTN_CUDA_OPTIONS_INIT;
  for (int option; (option = getopt_long(argc, argv, "h", long_options, nullptr)) != -1;) {
    switch (option) {
      case 'r': rows = optarg; break;
      case 't': types = optarg; break;
      case 'm': modes = optarg; break;
      case 'n': repeat = std::atoi(optarg); break;
      case 'b': cut.block_rows = std::atoi(optarg); break;
      case 's': cut.num_multiprocessors = std::atoi(optarg); break;
      case 'f': flop_rate = 1e12 * std::atof(optarg); break;
      case 'j': json_path = optarg; break;
      case 'x': steps = false; break;
      case 'h': std::fputs(help, stdout); return 0;
      default: return 2;
    }
  }
  if (repeat < 1 || flop_rate <= 0 || optind < argc) {
    std::fputs(help, stderr);
    return 2;
  }
  treeattn_cuda_device device = TREEATTN_CUDA_DEVICE_INIT;
  TREEATTN(treeattn_cuda_get_device(0, &device, &error));
  int khz = 0;
  CUDA(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
  const double copy_rate = measure_copy_rate();

  std::string json = "{\n";
  char line[1024];
  std::snprintf(line, sizeof line,
                "  \"device\": \"%s\", \"multiprocessors\": %d, \"clock_mhz\": %d, \"version\": \"%s\",\n"
                "  \"copy_gb_per_s\": %.1f, \"floor_tflop_per_s\": %.1f, \"repeat\": %d,\n",
                device.name, (int)device.num_multiprocessors, khz / 1000, treeattn_version(), copy_rate / 1e9,
                flop_rate / 1e12, repeat);
  json += line;
  std::printf("%s, %d multiprocessors, %d MHz; copy %.0f GB/s; floor: bytes over that or flops over %.0f TFLOP/s; "
              "median of %d\n\n",
              device.name, (int)device.num_multiprocessors, khz / 1000, copy_rate / 1e9, flop_rate / 1e12, repeat);
  std::printf("| | type | mode | us | GB/s | TFLOP/s | floor us | share | error | scratch | seed's scratch | image | units | rows |\n"
              "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  json += "  \"rows\": [";
  bool first = true;
  static const treeattn_mode mode_values[] = {TREEATTN_MODE_FAST, TREEATTN_MODE_EXACT};
  static const char *const mode_names[] = {"fast", "exact"};
  static const treeattn_dtype type_values[] = {TREEATTN_F16, TREEATTN_BF16};
  for (int m = 0; m < 2; ++m) {
    for (int t = 0; t < 2; ++t) {
      for (const Workload &w : workloads) {
        const char *type = treeattn_dtype_name(type_values[t]);
        if (!listed(rows, w.name) || !listed(types, type) || !listed(modes, mode_names[m])) {
          continue;
        }
        const Result r = measure(w, type_values[t], mode_values[m], repeat, cut);
        const double bytes = 4.0 * w.kv_heads * w.kv_len * w.dim;
        const double exps = (double)w.nodes * w.heads * w.kv_len;
        const double flops = 4.0 * exps * w.dim;
        const double memory = bytes / copy_rate, arithmetic = flops / flop_rate;
        const double floor_us = 1e6 * (memory > arithmetic ? memory : arithmetic);
        const size_t seed_scratch = treeattn_tmp_buffer_bytes((uint32_t)w.heads, (uint32_t)w.dim, (uint32_t)w.nodes);
        std::printf("| %s | %s | %s | %.1f | %.0f | %.1f | %.1f | %.2f | %.2e | %zu | %zu | %zu | %lld x %d | %d |\n", w.name,
                    type, mode_names[m], r.us, bytes / r.us / 1e3, flops / r.us / 1e6, floor_us, floor_us / r.us, r.error,
                    r.scratch_bytes, seed_scratch, r.image_bytes, (long long)r.units, r.unit_leaves, r.block_rows);
        std::fflush(stdout);
        std::snprintf(line, sizeof line,
                      "%s\n    {\"name\": \"%s\", \"heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, \"nodes\": %d, "
                      "\"kv_len\": %d, \"type\": \"%s\", \"mode\": \"%s\", \"us\": %.3f, \"gb_per_s\": %.1f, "
                      "\"tflop_per_s\": %.2f, \"floor_us\": %.3f, \"share\": %.4f, \"error\": %.3e, \"scratch_bytes\": %zu, "
                      "\"seed_scratch_bytes\": %zu, \"image_bytes\": %zu, \"units\": %lld, \"unit_leaves\": %d, "
                      "\"block_rows\": %d}",
                      first ? "" : ",", w.name, w.heads, w.kv_heads, w.dim, w.nodes, w.kv_len, type, mode_names[m], r.us,
                      bytes / r.us / 1e3, flops / r.us / 1e6, floor_us, floor_us / r.us, r.error, r.scratch_bytes,
                      seed_scratch, r.image_bytes, (long long)r.units, r.unit_leaves, r.block_rows);
        json += line;
        first = false;
      }
    }
  }
  json += "\n  ],\n  \"launch_to_launch_us\": {";
  std::printf("\nOne layer of N = 1, KV = 64 in a graph of 100:");
  first = true;
  for (int m = 0; m < 2; ++m) {
    if (listed(modes, mode_names[m])) {
      const double us = 1e6 * measure_launch(mode_values[m], repeat);
      std::printf(" %s %.2f us", mode_names[m], us);
      std::snprintf(line, sizeof line, "%s\"%s\": %.3f", first ? "" : ", ", mode_names[m], us);
      json += line;
      first = false;
    }
  }
  std::printf("\n");
  json += "},\n  \"steps\": [";
  std::printf("\n| step | | us | GB/s |\n|---|---|---|---|\n");
  first = true;
  for (const StepTime &step : steps ? measure_steps(repeat) : std::vector<StepTime>()) {
    std::printf("| %s | %s | %.1f | %.0f |\n", step.name, step.what, step.us, step.gb_per_s);
    std::snprintf(line, sizeof line, "%s\n    {\"name\": \"%s\", \"what\": \"%s\", \"us\": %.3f, \"gb_per_s\": %.1f}",
                  first ? "" : ",", step.name, step.what, step.us, step.gb_per_s);
    json += line;
    first = false;
  }
  json += "\n  ]\n}\n";
  if (json_path != nullptr) {
    std::FILE *file = std::fopen(json_path, "w");
    if (file == nullptr || std::fputs(json.c_str(), file) < 0 || std::fclose(file) != 0) {
      DIE("%s: cannot be written", json_path);
    }
  }
  return 0;
}
