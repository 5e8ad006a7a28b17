#include "trainer/cli/bench_comm_command.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trainer/bench/collectives.h"
#include "trainer/bench/links.h"
#include "trainer/loop/rank_end.h"
#include "trainer/loop/world.h"
#include "trainer/parallel/reduce_kernel.h"

namespace sortie::trainer {
namespace {

const std::map<std::string, DType> kElementTypes = {{"f32", DType::f32}, {"bf16", DType::bf16},
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
    // One rank per host, unless all are requested. On a single host, all ranks.
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
  bench.dtype = kElementTypes.at(arguments.dtype);
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

}  // namespace

void add_bench_comm(CLI::App& bench, int& exit_code) {
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
                   "Most repetitions of a size; slow operations are repeated for about --seconds")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--seconds", arguments->bench.seconds, "Approximate time per size")
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
                   "Repetitions of each measurement; the fastest counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "One JSON object of rank 0 instead of a table");
  command->callback([arguments, &exit_code] {
    RankEnd end;
    exit_code = end.exit_code_of([&] { return run_comm(*arguments, end); });
  });
}

}  // namespace sortie::trainer
