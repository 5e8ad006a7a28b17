#include "trainer/loop/stream_progress.h"

#include <memory>
#include <new>

#include "trainer/tensor/device_memory.h"
#include "trainer/tensor/marking_module.h"

namespace sortie::trainer {

void follow_stream(ProgressMarks& marks, ExecutionContext& context) {
  if (context.device().kind != DeviceKind::cuda) return;
  const std::shared_ptr<std::byte[]> block = host_block(context.device(), sizeof(StreamPlace));
  const std::shared_ptr<StreamPlace> place(block, new (block.get()) StreamPlace);
  marks.follow(place, [&context, place](const StreamMark& mark) {
    marking_module().mark(context, *place, mark);
  });
}

}  // namespace sortie::trainer
