// oneDNN matrix products, cached by shape.
#include "trainer/ops/cpu/matmul.h"

#include <omp.h>

#include <new>
#include <utility>

#include "common/base/check.h"
#include "trainer/ops/cpu/cpu_backend.h"

namespace sortie::trainer::ops {
namespace {

using dnnl::memory;

/// Except for lack of memory, an error of oneDNN is a bug of Sortie.
[[noreturn]] void refused(const dnnl::error& error, const std::string& what) {
  if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
  SORTIE_CHECK(false, "oneDNN has no {} here: {}", what, error.what());
  __builtin_unreachable();
}
void check_run(dnnl_status_t status, const char* what) {
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  SORTIE_CHECK(status == dnnl_success, "oneDNN {}: status {}", what, static_cast<int>(status));
}

memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const MatmulSpec& spec) {
  const memory::data_type input = dnnl_type(spec.input);
  const memory::desc a({spec.m, spec.k}, input, memory::dims{spec.a_row, spec.a_col});
  const memory::desc b =
      spec.b_row == 0 ? memory::desc({spec.k, spec.n}, input, memory::format_tag::any)
                      : memory::desc({spec.k, spec.n}, input, memory::dims{spec.b_row, spec.b_col});
  const memory::desc c({spec.m, spec.n}, dnnl_type(spec.output), memory::dims{spec.c_row, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (spec.accumulate) {
    dnnl::post_ops operations;
    operations.append_sum(1.0f);
    attributes.set_post_ops(operations);
  }
  if (!spec.bias) return {dnnl::matmul::desc(a, b, c), attributes, engine};
  const memory::desc bias({1, spec.n}, memory::data_type::f32, memory::format_tag::ab);
  return {dnnl::matmul::desc(a, b, bias, c), attributes, engine};
}

}  // namespace

std::size_t MatmulSpecHash::operator()(const MatmulSpec& spec) const {
  std::size_t hash = 0;
  const auto mix = [&hash](std::int64_t value) {
    hash = (hash ^ static_cast<std::size_t>(value)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  for (const std::int64_t value :
       {spec.m, spec.n, spec.k, spec.a_row, spec.a_col, spec.b_row, spec.b_col, spec.c_row})
    mix(value);
  mix((static_cast<int>(spec.input) << 6) | (static_cast<int>(spec.output) << 3) |
      (spec.bias << 2) | (spec.accumulate << 1) | static_cast<int>(spec.single_thread));
  return hash;
}

Matmul::Matmul(const dnnl::engine& engine, const MatmulSpec& spec, int threads, bool sizes_only) {
  try {
    const auto description = describe(engine, spec);
    b_ = description.weights_desc();
    scratch_ = description.scratchpad_desc();
    if (sizes_only) return;
    product_ = dnnl::matmul(description);
    for (int thread = 0; thread < (spec.single_thread ? threads : 1); ++thread)
      operands_.push_back(
          {memory(description.src_desc(), engine, nullptr), memory(b_, engine, nullptr),
           memory(description.dst_desc(), engine, nullptr),
           memory(description.bias_desc(), engine, nullptr), memory(scratch_, engine, nullptr)});
  } catch (const dnnl::error& error) {
    if (sizes_only && error.status == dnnl_unimplemented) {
      b_ = memory::desc({spec.k, spec.n}, dnnl_type(spec.input), memory::format_tag::ab);
      return;
    }
    refused(error, fmt::format("{} product [{}, {}] x [{}, {}]", dtype_name(spec.input), spec.m,
                               spec.k, spec.k, spec.n));
  }
}

void Matmul::run(const dnnl::stream& stream, const void* a, const void* b, void* c,
                 const float* bias, void* scratch, int thread) const {
  Operands& own = operands_[static_cast<std::size_t>(thread)];
  dnnl_exec_arg_t arguments[5];
  int count = 0;
  const auto set = [&](int index, const memory& operand, const void* data) {
    const dnnl_status_t status =
        dnnl_memory_set_data_handle(operand.get(), const_cast<void*>(data));
    check_run(status, "operand");
    arguments[count++] = {index, operand.get()};
  };
  set(DNNL_ARG_SRC, own.a, a);
  set(DNNL_ARG_WEIGHTS, own.b, b);
  set(DNNL_ARG_DST, own.c, c);
  if (bias != nullptr) set(DNNL_ARG_BIAS, own.bias, bias);
  if (scratch_bytes() > 0) set(DNNL_ARG_SCRATCHPAD, own.scratch, scratch);
  const dnnl_status_t status =
      dnnl_primitive_execute(product_.get(), stream.get(), count, arguments);
  check_run(status, "product");
}

std::shared_ptr<const Matmul> find_matmul(ExecutionContext& context, const MatmulSpec& spec) {
  auto& matmuls = cpu_state(context).matmuls;
  if (const auto found = matmuls.find(spec); found != matmuls.end()) return found->second;
  // A caller whose shapes change all the time (text generation) must not grow the cache without
  // bound.
  constexpr std::size_t kMaxKept = 4096;
  if (matmuls.size() >= kMaxKept) matmuls.clear();
  // oneDNN plans for the number of threads at the time when the primitive is created.
  omp_set_num_threads(spec.single_thread ? 1 : context.threads());
  auto made = std::make_shared<const Matmul>(cpu_state(context).engine, spec, context.threads(),
                                             is_meta(context));
  omp_set_num_threads(context.threads());
  return matmuls.emplace(spec, std::move(made)).first->second;
}

void run_matmul(ExecutionContext& context, const MatmulSpec& spec, const void* a, const void* b,
                void* c, const float* bias) {
  const auto matmul = find_matmul(context, spec);
  const auto scratch = context.allocator().allocate(matmul->scratch_bytes());
  if (is_meta(context)) return;
  omp_set_num_threads(context.threads());
  matmul->run(cpu_state(context).stream, a, b, c, bias, scratch.get());
}

void pack(ExecutionContext& context, DType dtype, const void* from, std::int64_t row,
          std::int64_t col, const dnnl::memory::desc& packed, void* to) {
  if (is_meta(context)) return;
  const dnnl::engine& engine = cpu_state(context).engine;
  const memory::desc plain(packed.dims(), dnnl_type(dtype), memory::dims{row, col});
  omp_set_num_threads(context.threads());
  try {
    memory source(plain, engine, const_cast<void*>(from));
    memory target(packed, engine, to);
    dnnl::reorder(source, target).execute(cpu_state(context).stream, source, target);
  } catch (const dnnl::error& error) {
    refused(error, "rearrangement of a weight");
  }
}

}  // namespace sortie::trainer::ops
