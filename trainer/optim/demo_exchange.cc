#include "trainer/optim/demo_exchange.h"

#include "common/base/check.h"

namespace sortie::trainer {

DemoExchange::DemoExchange(ExecutionContext& context, const config::OptimizerConfig& settings,
                           ParameterStore& store, Communicator& members)
    : momentum_decay_(static_cast<float>(settings.momentum)), store_(store), members_(members) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < store.parameters().size(); ++i) {
    const Parameter& parameter = *store.parameters()[i];
    if (!parameter.trained()) continue;
    for (const OwnPart& own : parameter.own_parts()) {
      SORTIE_CHECK(own.run.flat.elements() == own.block->elements(), "a part of a block of {}",
                   parameter.name());
      const bool is_vector = parameter.spec().shape.dims() == 1;
      const ops::DemoBlocks blocks{.rows = is_vector ? 1 : own.block->rows,
                                   .columns = is_vector ? own.block->rows : own.block->columns,
                                   .chunk = settings.chunk,
                                   .top_k = settings.top_k};
      parts_.push_back({i, own.run, blocks, bytes});
      bytes += blocks.message_bytes();
    }
  }
  messages_ = context.zeros(DType::u8, {members.size(), bytes});
}

void DemoExchange::gather(ExecutionContext& context) {
  members_
      .all_gather_async(own_message(), messages_.view({messages_.elements()}), context.record())
      ->wait_on(context);
}

void DemoExchange::update(ExecutionContext& context, const Tensor& gate,
                          std::span<const Rates> rates, const Between& between) {
  if (parts_.empty()) return;
  const Tensor own = own_message();
  for (const Part& part : parts_) {
    const std::int64_t count = part.run.flat.elements();
    Tensor momentum = store_.moment1().slice(0, part.run.moment, count);
    Tensor message = own.slice(0, part.begin, part.blocks.message_bytes());
    ops::demo_send(context, {momentum_decay_, rates[part.parameter].lr, gate}, part.blocks,
                   store_.gradients_of(part.run), momentum, message);
  }
  if (members_.size() > 1) {
    if (between)
      between([this, &context] { gather(context); });
    else
      gather(context);
  }
  for (const Part& part : parts_) {
    Tensor weights = store_.master().slice(0, part.run.master, part.run.flat.elements());
    Tensor copies = store_.copies_of(*store_.parameters()[part.parameter], part.run);
    ops::demo_move(context, {rates[part.parameter].lr, rates[part.parameter].weight_decay, gate},
                   part.blocks, messages_.slice(1, part.begin, part.blocks.message_bytes()),
                   weights, copies);
  }
}

}  // namespace sortie::trainer
