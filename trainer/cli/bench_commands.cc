#include "trainer/cli/bench_commands.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trainer/bench/collectives.h"
#include "trainer/bench/links.h"
#include "trainer/bench/one_rank.h"
#include "trainer/cli/bench_step_command.h"
#include "trainer/cli/load_checkpoint.h"
#include "trainer/cli/report.h"
#include "trainer/loop/rank_end.h"
#include "trainer/loop/world.h"
#include "trainer/parallel/reduce_kernel.h"

namespace sortie::trainer {
namespace {

const std::map<std::string, DType> kTypes = {{"f32", DType::f32}, {"bf16", DType::bf16},
                                             {"f64", DType::f64}, {"i32", DType::i32},
                                             {"i64", DType::i64}, {"u8", DType::u8}};

struct CommArguments {
  CollectiveBench bench;
  std::uint64_t from = 8, to = std::uint64_t{64} << 20, link_bytes = std::uint64_t{16} << 20;
  std::string dtype = "f32", redop = "sum", link_ranks = "host", device = "cpu", backend = "auto";
  int link_repeats = 1;
  bool links = false, json = false;
};

nlohmann::ordered_json json_of(const CollectiveRow& row, const CommArguments& arguments) {
  return {{"operation", row.operation},
          {"bytes", row.bytes},
          {"count", row.count},
          {"dtype", arguments.dtype},
          {"redop", reduces(row.operation) ? arguments.redop : "none"},
          {"us", row.us},
          {"algbw", row.algbw},
          {"busbw", row.busbw},
          {"wrong", row.wrong}};
}

void print_row(const CollectiveRow& row, const CommArguments& arguments) {
  fmt::print("{:<14} {:>12} {:>12} {:>5} {:>6} {:>11.1f} {:>9.3f} {:>9.3f} {:>7}\n", row.operation,
             row.bytes, row.count, arguments.dtype,
             reduces(row.operation) ? arguments.redop : "none", row.us, row.algbw, row.busbw,
             row.wrong);
  std::fflush(stdout);
}

void print_links(const LinkReport& report, const std::vector<std::string>& names) {
  const auto name = [&](int rank) { return names[static_cast<std::size_t>(rank)]; };
  fmt::print("# links between hosts, both ways at the same time; latency of 8 bytes one way\n");
  fmt::print("{:<24} {:<24} {:>9} {:>12}\n", "from", "to", "Gbit/s", "latency us");
  for (const LinkRow& row : report.pairs)
    fmt::print("{:<24} {:<24} {:>9.3f} {:>12.1f}\n", name(row.from), name(row.to), row.gbit_s,
               row.us);
  fmt::print("# all of them in a ring\n");
  for (const LinkRow& row : report.ring)
    fmt::print("{:<24} {:<24} {:>9.3f}\n", name(row.from), name(row.to), row.gbit_s);
  fmt::print("# what a rank that computes loses by what it sends: {:.3f} ns a byte\n",
             1e9 * report.beside);
}

nlohmann::ordered_json json_of(const LinkReport& report, const std::vector<std::string>& names) {
  nlohmann::ordered_json out = {{"pairs", nlohmann::ordered_json::array()},
                                {"ring", nlohmann::ordered_json::array()}};
  const auto name = [&](int rank) { return names[static_cast<std::size_t>(rank)]; };
  for (const LinkRow& row : report.pairs)
    out["pairs"].push_back({{"from", name(row.from)},
                            {"to", name(row.to)},
                            {"gbit_s", row.gbit_s},
                            {"latency_us", row.us}});
  for (const LinkRow& row : report.ring)
    out["ring"].push_back({{"from", name(row.from)}, {"to", name(row.to)}, {"gbit_s", row.gbit_s}});
  out["beside_ns_per_byte"] = 1e9 * report.beside;
  return out;
}

Result<> measure_comm(const CommArguments& arguments, Communicator& world,
                      const RankContext& rank) {
  const bool speaks = rank.rank == 0;
  const std::vector<std::string> hosts = world.all_gather(rank.host);
  nlohmann::ordered_json report = {{"schema", "sortie/bench-comm/1"},
                                   {"library", world.library()},
                                   {"ranks", world.size()},
                                   {"hosts", hosts}};
  if (speaks && !arguments.json) {
    fmt::print("# {} ranks, {}\n", world.size(), world.library());
    for (std::size_t i = 0; i < hosts.size(); ++i) fmt::print("#   rank {:>4} {}\n", i, hosts[i]);
  }
  if (arguments.links) {
    // One rank of each host, unless all are asked for; on a single host all of them.
    const bool all = arguments.link_ranks == "all";
    auto group = world.split(rank.local_rank == 0 ? 0 : -1, rank.rank, "hosts");
    double hosts_there[] = {rank.local_rank == 0 ? 1.0 : 0.0};
    world.all_reduce_sum(hosts_there);
    if (hosts_there[0] < 2 || all) group = world.split(0, rank.rank, "ranks");
    if (group) {
      const std::vector<std::string> names = group->all_gather(rank.host);
      const LinkReport links = bench_links(*group, static_cast<std::int64_t>(arguments.link_bytes),
                                           arguments.link_repeats);
      report["links"] = json_of(links, names);
      if (speaks && !arguments.json) print_links(links, names);
    }
    world.barrier();
  }
  if (!arguments.bench.operations.empty()) {
    if (speaks && !arguments.json)
      fmt::print(
          "# {:<12} {:>12} {:>12} {:>5} {:>6} {:>11} {:>9} {:>9} {:>7}\n"
          "# {:<12} {:>12} {:>12} {:>5} {:>6} {:>11} {:>9} {:>9} {:>7}\n",
          "operation", "size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong", "",
          "(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", "");
    report["rows"] = nlohmann::ordered_json::array();
    const auto rows = bench_collectives(world, arguments.bench, [&](const CollectiveRow& row) {
      if (speaks && !arguments.json) print_row(row, arguments);
      report["rows"].push_back(json_of(row, arguments));
    });
    const auto wrong = std::ranges::count_if(rows, [](const auto& row) { return row.wrong > 0; });
    if (speaks && arguments.json) fmt::print("{}\n", report.dump());
    if (wrong > 0)
      return fail(ErrorCode::diverged,
                  fmt::format("bench comm: {} of {} rows have wrong values: check the memory and "
                              "the network of the hosts",
                              wrong, rows.size()));
    return {};
  }
  if (speaks && arguments.json) fmt::print("{}\n", report.dump());
  return {};
}

Result<> run_comm(CommArguments& arguments, RankEnd& end) {
  SORTIE_ASSIGN_OR_RETURN(RankContext rank, rank_context_from_environment());
  end.set_rank(rank);
  CollectiveBench& bench = arguments.bench;
  bench.dtype = kTypes.at(arguments.dtype);
  bench.reduce = arguments.redop == "max" ? ReduceOp::max : ReduceOp::sum;
  bench.from = static_cast<std::int64_t>(arguments.from);
  bench.to = static_cast<std::int64_t>(arguments.to);
  if (bench.operations.empty() && !arguments.links) bench.operations = collective_bench_names();
  if (!can_reduce(bench.dtype, bench.reduce) && std::ranges::any_of(bench.operations, reduces))
    return fail(ErrorCode::usage, fmt::format("bench comm: values of {} are not added; take "
                                              "--redop max or another --dtype",
                                              arguments.dtype));
  if (bench.from < 1 || bench.from > bench.to)
    return fail(ErrorCode::usage, "bench comm: --from must be 1 or more and at most --to");
  if (rank.world_size < 2)
    return fail(ErrorCode::usage,
                "bench comm: it needs two ranks or more; start it as a job: sortie run --hosts "
                "'h[01-04]' -- sortie-train bench comm");
  SORTIE_ASSIGN_OR_RETURN(
      rank.compute,
      choose_device(arguments.device, place_from_environment(rank.local_rank, rank.local_ranks),
                    "--device"));
  bench.device = rank.compute.device;
  SORTIE_ASSIGN_OR_RETURN(auto world, make_world(arguments.backend, rank));
  end.set_communicator(std::move(world));
  return end.guard([&] { return measure_comm(arguments, end.communicator(), rank); });
}

void add_comm(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<CommArguments>();
  CLI::App* command = bench.add_subcommand(
      "comm", "Time collectives of all ranks of a job at several sizes, as nccl-tests do");
  command
      ->add_option("--op", arguments->bench.operations,
                   "all_reduce, reduce_scatter, all_gather, broadcast, all_to_all, ring; default: "
                   "all of them")
      ->delimiter(',')
      ->check(CLI::IsMember(collective_bench_names()));
  command->add_option("--from", arguments->from, "Smallest size, in bytes (64KB, 1MB)")
      ->transform(CLI::AsSizeValue(false));
  command->add_option("--to", arguments->to, "Largest size (64MB if not given)")
      ->transform(CLI::AsSizeValue(false));
  command->add_option("--factor", arguments->bench.factor, "From one size to the next")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--dtype", arguments->dtype, "Type of the elements")
      ->check(CLI::IsMember({"f32", "bf16", "f64", "i32", "i64", "u8"}))
      ->capture_default_str();
  command->add_option("--device", arguments->device, "Whose memory the values are in")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_option("--backend", arguments->backend,
                   "Backend, as topology.backend; default: nccl for --device cuda")
      ->check(CLI::IsMember({"auto", "mpi", "nccl"}))
      ->capture_default_str();
  command->add_option("--redop", arguments->redop, "What reductions do")
      ->check(CLI::IsMember({"sum", "max"}))
      ->capture_default_str();
  command
      ->add_option("--iterations", arguments->bench.iterations,
                   "Of a size at most; slow ones are repeated for about --seconds")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--seconds", arguments->bench.seconds, "For a size, about")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_flag("--links", arguments->links,
                    "Every pair of hosts, and all hosts in a ring; collectives only with --op");
  command->add_option("--link-bytes", arguments->link_bytes, "Bytes sent over a link (16MB)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--link-ranks", arguments->link_ranks,
                   "Between which ranks: one of each host, or all: host | all")
      ->check(CLI::IsMember({"host", "all"}))
      ->capture_default_str();
  command
      ->add_option("--link-repeats", arguments->link_repeats,
                   "Of each measurement; the fastest counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "One JSON object of rank 0 instead of a table");
  command->callback([arguments, &exit_code] {
    RankEnd end;
    exit_code = end.exit_code_of([&] { return run_comm(*arguments, end); });
  });
}

Result<> run_matmul(MatmulBench bench, const std::string& dtype, const std::string& device,
                    bool json) {
  SORTIE_ASSIGN_OR_RETURN(const RankContext rank, rank_context_from_environment());
  SORTIE_ASSIGN_OR_RETURN(const ComputeDevice compute, choose_device_of_verb(device));
  const CpuFacts cpu = cpu_facts();
  const bool multiplies_bf16 =
      compute.gpu ? compute.gpu->compute_capability >= 80 : cpu.multiplies_bf16;
  const std::string name = compute.gpu ? compute.name() : cpu.model;
  bench.dtype = dtype.empty() ? (multiplies_bf16 ? DType::bf16 : DType::f32) : kTypes.at(dtype);
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
                   "Of activations and weights; default: bf16 where the device multiplies it")
      ->check(CLI::IsMember({"f32", "bf16"}));
  command
      ->add_option("--iterations", arguments->bench.iterations,
                   "The fastest one counts; on a GPU the mean, of the best of three rounds")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  add_device_option(*command, arguments->device);
  command
      ->add_option("--timed", arguments->bench.timed,
                   "On a GPU: of so many ways to compute a product the fastest is taken; 1: the "
                   "library's own choice")
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
  command->add_option("--iterations", arguments->iterations, "The fastest one counts")
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
  add_comm(*bench, exit_code);
  add_matmul(*bench, exit_code);
  add_copy(*bench, exit_code);
}

}  // namespace sortie::trainer
