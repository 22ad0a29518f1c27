// SPDX-License-Identifier: Apache-2.0
// What a student learns from beside the data.
#pragma once
#include <meshgrad/engine/tensor.h>

#pragma GCC visibility push(default)
namespace meshgrad {

/// What a trained model, the teacher, gives for a batch (Hinton, Vinyals, Dean 2015, section 2): of classes,
/// T^2 KL(softmax(values / T) || softmax(logits / T)) is a share of each row's loss, with T the temperature.
struct TeacherOutput {
  Tensor values;             ///< as the student's; undefined: there is no teacher
  double share = 0.0;        ///< of the teacher in the loss, 0 to 1; 1 - share is the data's
  double temperature = 1.0;  ///< of classes, above 0
};

}  // namespace meshgrad
#pragma GCC visibility pop
