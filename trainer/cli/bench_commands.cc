#include "trainer/cli/bench_commands.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trainer/bench/one_rank.h"
#include "trainer/cli/bench_comm_command.h"
#include "trainer/cli/bench_step_command.h"
#include "trainer/cli/load_checkpoint.h"
#include "trainer/cli/report.h"

namespace sortie::trainer {
namespace {

const std::map<std::string, DType> kProductTypes = {{"f32", DType::f32}, {"bf16", DType::bf16}};

Result<> run_matmul(MatmulBench bench, const std::string& dtype, const std::string& device,
                    bool json) {
  SORTIE_ASSIGN_OR_RETURN(const RankContext rank, rank_context_from_environment());
  SORTIE_ASSIGN_OR_RETURN(const ComputeDevice compute, choose_device_of_verb(device));
  const CpuFacts cpu = cpu_facts();
  const bool multiplies_bf16 =
      compute.gpu ? compute.gpu->compute_capability >= 80 : cpu.multiplies_bf16;
  const std::string name = compute.gpu ? compute.name() : cpu.model;
  bench.dtype =
      dtype.empty() ? (multiplies_bf16 ? DType::bf16 : DType::f32) : kProductTypes.at(dtype);
  if (bench.dtype == DType::bf16 && !multiplies_bf16)
    return fail(ErrorCode::unsupported,
                fmt::format("bench matmul: {} has no bf16 products; take --dtype f32", name));
  ExecutionContext context(rank.threads, compute.device);
  const MatmulSeconds seconds = bench_matmul(context, bench);
  const double flop = 2.0 * static_cast<double>(bench.rows) * static_cast<double>(bench.out) *
                      static_cast<double>(bench.in);
  const double peak = compute.gpu ? peak_flop_s(*compute.gpu, bench.dtype) : 0.0;
  const std::pair<const char*, double> rows[] = {{"forward", seconds.forward},
                                                 {"data_gradient", seconds.data_gradient},
                                                 {"weight_gradient", seconds.weight_gradient}};
  if (json) {
    nlohmann::ordered_json report = {{"schema", "sortie/bench-matmul/1"}};
    if (compute.gpu) {
      report["gpu"] = name;
      report["libraries"] = compute.libraries;
      if (peak > 0) report["peak_tflop_s"] = peak / 1e12;
    } else {
      report["cpu"] = cpu.model;
      report["isa"] = cpu.isa;
      report["threads"] = rank.threads;
    }
    report["rows"] = bench.rows;
    report["out"] = bench.out;
    report["in"] = bench.in;
    report["dtype"] = dtype_name(bench.dtype);
    for (const auto& [product, took] : rows)
      report[product] = {{"us", 1e6 * took}, {"tflop_s", flop / took / 1e12}};
    fmt::print("{}\n", report.dump());
    return {};
  }
  fmt::print("# {}, {}: [{}, {}] . [{}, {}]^T in {}\n", name,
             compute.gpu ? compute.libraries : fmt::format("{}, {} threads", cpu.isa, rank.threads),
             bench.rows, bench.in, bench.out, bench.in, dtype_name(bench.dtype));
  fmt::print("{:<16} {:>12} {:>9}{}\n", "product", "us", "TFLOP/s",
             peak > 0 ? fmt::format("   of {:.0f}", peak / 1e12) : "");
  for (const auto& [product, took] : rows)
    fmt::print("{:<16} {:>12.1f} {:>9.3f}{}\n", product, 1e6 * took, flop / took / 1e12,
               peak > 0 ? fmt::format(" {:>5.1f} %", 100 * flop / took / peak) : "");
  return {};
}

void add_matmul(CLI::App& bench, int& exit_code) {
  struct Arguments {
    MatmulBench bench;
    std::string dtype, device = "auto";
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = bench.add_subcommand(
      "matmul", "Time the three products of a linear layer, as training computes them");
  const auto size = [&](const char* name, std::int64_t& value, const char* what) {
    command->add_option(name, value, what)->check(CLI::Range(1, 1 << 24))->capture_default_str();
  };
  size("--rows", arguments->bench.rows, "Rows of the activations: sequences x tokens");
  size("--out", arguments->bench.out, "Rows of the weight");
  size("--in", arguments->bench.in, "Columns of the weight");
  command
      ->add_option("--dtype", arguments->dtype,
                   "Type of activations and weights; default: bf16 if the device multiplies bf16")
      ->check(CLI::IsMember({"f32", "bf16"}));
  command
      ->add_option("--iterations", arguments->bench.iterations,
                   "Repetitions; the fastest counts; on a GPU the mean of the best of three rounds")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  add_device_option(*command, arguments->device);
  command
      ->add_option(
          "--timed", arguments->bench.timed,
          "On a GPU: number of algorithms to time for a product; the fastest is used; 1: the "
          "library chooses")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->callback([arguments, &exit_code] {
    exit_code = report_error("bench matmul", run_matmul(arguments->bench, arguments->dtype,
                                                        arguments->device, arguments->json));
  });
}

Result<> run_copy(std::uint64_t bytes, int iterations, bool json) {
  SORTIE_ASSIGN_OR_RETURN(const RankContext rank, rank_context_from_environment());
  ExecutionContext context(rank.threads);
  const CopySeconds seconds = bench_copy(context, static_cast<std::int64_t>(bytes), iterations);
  const auto rate = [bytes](double took) { return static_cast<double>(bytes) / took / 1e9; };
  if (json) {
    fmt::print("{}\n", nlohmann::ordered_json({{"schema", "sortie/bench-copy/1"},
                                               {"bytes", bytes},
                                               {"threads", rank.threads},
                                               {"one_thread_gb_s", rate(seconds.one_thread)},
                                               {"all_threads_gb_s", rate(seconds.all_threads)}})
                           .dump());
    return {};
  }
  fmt::print(
      "copy of {}: {:.2f} GB/s by one thread, {:.2f} GB/s by {} (each byte is read and "
      "written)\n",
      human_bytes(bytes), rate(seconds.one_thread), rate(seconds.all_threads), rank.threads);
  return {};
}

void add_copy(CLI::App& bench, int& exit_code) {
  struct Arguments {
    std::uint64_t bytes = std::uint64_t{256} << 20;
    int iterations = 10;
    bool json = false;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = bench.add_subcommand("copy", "Time copies in the memory of one rank");
  command->add_option("--bytes", arguments->bytes, "Size of the copy (256MB if not given)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  command->add_option("--iterations", arguments->iterations, "Repetitions; the fastest counts")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "One JSON object instead of text");
  command->callback([arguments, &exit_code] {
    exit_code = report_error("bench copy",
                             run_copy(arguments->bytes, arguments->iterations, arguments->json));
  });
}

}  // namespace

void add_bench_commands(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand(
      "bench", "Measure steps of a model, collectives, matrix products and copies");
  bench->require_subcommand(1);
  add_bench_step(*bench, exit_code);
  add_bench_comm(*bench, exit_code);
  add_matmul(*bench, exit_code);
  add_copy(*bench, exit_code);
}

}  // namespace sortie::trainer
