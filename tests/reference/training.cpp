// SPDX-License-Identifier: Apache-2.0
#include "reference/training.h"

#include <algorithm>
#include <cmath>

namespace meshgrad::reference {

Loss masked_loss(const Matrix& prediction, const Matrix& target, const std::vector<uint8_t>& mask) {
  Loss loss;
  for (int64_t i = 0; i < prediction.rows; ++i) {
    if (mask[static_cast<size_t>(i)] == 0) continue;
    loss.weight += 1.0;
    for (int64_t j = 0; j < prediction.cols; ++j) {
      const double error = prediction.at(i, j) - target.at(i, j);
      loss.sum += error * error;
    }
  }
  return loss;
}

Matrix masked_loss_backward(const Matrix& prediction, const Matrix& target, const std::vector<uint8_t>& mask,
                            double seed) {
  Matrix d(prediction.rows, prediction.cols);
  for (int64_t i = 0; i < prediction.rows; ++i) {
    if (mask[static_cast<size_t>(i)] == 0) continue;
    for (int64_t j = 0; j < prediction.cols; ++j) {
      d.at(i, j) = seed * 2.0 * (prediction.at(i, j) - target.at(i, j));
    }
  }
  return d;
}

Loss formed_loss(const Matrix& prediction, const Matrix& target, const std::vector<uint8_t>& mask,
                 const Form& form) {
  Loss loss;
  for (int64_t i = 0; i < prediction.rows; ++i) {
    if (mask[static_cast<size_t>(i)] == 0) continue;
    const double row = form.rows[static_cast<size_t>(i)];
    loss.weight += row;
    for (int64_t j = 0; j < prediction.cols; ++j) {
      const double size = std::abs(prediction.at(i, j) - target.at(i, j));
      double cost = size * size;
      if (form.kind == LossKind::absolute) cost = size;
      if (form.kind == LossKind::huber && size > form.delta)
        cost = 2.0 * form.delta * (size - form.delta / 2.0);
      loss.sum += form.factor * row * form.columns[static_cast<size_t>(j)] * cost;
    }
  }
  return loss;
}

Matrix formed_loss_backward(const Matrix& prediction, const Matrix& target, const std::vector<uint8_t>& mask,
                            const Form& form, double seed) {
  Matrix d(prediction.rows, prediction.cols);
  for (int64_t i = 0; i < prediction.rows; ++i) {
    if (mask[static_cast<size_t>(i)] == 0) continue;
    for (int64_t j = 0; j < prediction.cols; ++j) {
      const double error = prediction.at(i, j) - target.at(i, j);
      double slope = 2.0 * error;
      if (form.kind == LossKind::absolute) slope = error == 0.0 ? 0.0 : error / std::abs(error);
      if (form.kind == LossKind::huber) slope = 2.0 * std::clamp(error, -form.delta, form.delta);
      d.at(i, j) = seed * form.factor * form.rows[static_cast<size_t>(i)] *
                   form.columns[static_cast<size_t>(j)] * slope;
    }
  }
  return d;
}

Matrix accumulate_error(const Matrix& before, const Matrix& prediction, const Matrix& target,
                        const std::vector<uint8_t>& mask) {
  Matrix after(prediction.rows, prediction.cols);
  for (int64_t i = 0; i < after.rows; ++i) {
    for (int64_t j = 0; j < after.cols; ++j)
      after.at(i, j) = before.at(i, j) + prediction.at(i, j) - target.at(i, j);
  }
  return masked(after, mask);
}

Matrix masked(Matrix gradient, const std::vector<uint8_t>& mask) {
  for (int64_t i = 0; i < gradient.rows; ++i) {
    for (int64_t j = 0; j < gradient.cols; ++j)
      if (mask[static_cast<size_t>(i)] == 0) gradient.at(i, j) = 0.0;
  }
  return gradient;
}

Matrix add_columns(const Matrix& given, const Matrix& shift, const std::vector<int32_t>& source,
                   const Matrix& ratio) {
  Matrix shifted = given;
  for (int64_t i = 0; i < given.rows; ++i) {
    for (int64_t c = 0; c < given.cols; ++c) {
      const int32_t from = source[static_cast<size_t>(c)];
      if (from >= 0) shifted.at(i, c) += ratio.at(0, c) * shift.at(i, from);
    }
  }
  return shifted;
}

Matrix add_columns_backward(const Matrix& d_shifted, int64_t width, const std::vector<int32_t>& source,
                            const Matrix& ratio) {
  Matrix d_shift(d_shifted.rows, width);
  for (int64_t i = 0; i < d_shifted.rows; ++i) {
    for (int64_t c = 0; c < d_shifted.cols; ++c) {
      const int32_t from = source[static_cast<size_t>(c)];
      if (from >= 0) d_shift.at(i, from) += ratio.at(0, c) * d_shifted.at(i, c);
    }
  }
  return d_shift;
}

namespace {

std::vector<double> softmax(const Matrix& logits, int64_t row, double temperature = 1.0) {
  double largest = logits.at(row, 0), sum = 0.0;
  for (int64_t c = 0; c < logits.cols; ++c) largest = std::max(largest, logits.at(row, c));
  std::vector<double> shares;
  for (int64_t c = 0; c < logits.cols; ++c)
    shares.push_back(std::exp((logits.at(row, c) - largest) / temperature));
  for (const double share : shares) sum += share;
  for (double& share : shares) share /= sum;
  return shares;
}

}  // namespace

Loss class_loss(const Matrix& logits, const std::vector<int32_t>& labels, const std::vector<uint8_t>& mask,
                const std::vector<float>& weights, const Teacher& teacher) {
  Loss loss;
  for (int64_t i = 0; i < logits.rows; ++i) {
    if (mask[static_cast<size_t>(i)] == 0) continue;
    const auto label = static_cast<size_t>(labels[static_cast<size_t>(i)]);
    const double weight = weights.empty() ? 1.0 : static_cast<double>(weights[label]);
    loss.weight += weight;
    loss.sum -= (1.0 - teacher.share) * weight * std::log(softmax(logits, i)[label]);
    if (teacher.logits.rows == 0) continue;
    const double t = teacher.temperature;
    const std::vector<double> ours = softmax(logits, i, t), taught = softmax(teacher.logits, i, t);
    for (size_t c = 0; c < ours.size(); ++c)
      loss.sum += weight * teacher.share * t * t * taught[c] * std::log(taught[c] / ours[c]);
  }
  return loss;
}

Matrix class_loss_backward(const Matrix& logits, const std::vector<int32_t>& labels,
                           const std::vector<uint8_t>& mask, double seed, const std::vector<float>& weights,
                           const Teacher& teacher) {
  Matrix d(logits.rows, logits.cols);
  for (int64_t i = 0; i < logits.rows; ++i) {
    if (mask[static_cast<size_t>(i)] == 0) continue;
    const std::vector<double> shares = softmax(logits, i);
    const auto label = static_cast<size_t>(labels[static_cast<size_t>(i)]);
    const double scale = weights.empty() ? seed : seed * static_cast<double>(weights[label]);
    for (int64_t c = 0; c < logits.cols; ++c) {
      const double wanted = c == labels[static_cast<size_t>(i)] ? 1.0 : 0.0;
      d.at(i, c) = (1.0 - teacher.share) * scale * (shares[static_cast<size_t>(c)] - wanted);
    }
    if (teacher.logits.rows == 0) continue;
    const double t = teacher.temperature;
    const std::vector<double> ours = softmax(logits, i, t), taught = softmax(teacher.logits, i, t);
    for (int64_t c = 0; c < logits.cols; ++c)
      d.at(i, c) +=
          scale * teacher.share * t * (ours[static_cast<size_t>(c)] - taught[static_cast<size_t>(c)]);
  }
  return d;
}

double sum_of_squares(const std::vector<double>& x) {
  double total = 0.0;
  for (const double value : x) total += value * value;
  return total;
}

namespace {

double adam_direction(const OptimizerStep& s, double g, double& m, double& v) {
  m = s.beta1 * m + (1.0 - s.beta1) * g;
  v = s.beta2 * v + (1.0 - s.beta2) * g * g;
  const double unbiased_m = m / (1.0 - std::pow(s.beta1, static_cast<double>(s.step)));
  const double unbiased_v = v / (1.0 - std::pow(s.beta2, static_cast<double>(s.step)));
  return unbiased_m / (std::sqrt(unbiased_v) + s.epsilon);
}

}  // namespace

void optimizer_step(const OptimizerStep& s, const std::vector<double>& gradients, OptimizerState& state) {
  double scale = s.gradient_scale;
  const double norm = std::sqrt(sum_of_squares(gradients)) * s.gradient_scale;
  // torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm, and runs are compared with PyTorch's.
  if (s.clip_norm > 0.0) scale *= std::min(1.0, s.clip_norm / (norm + 1e-6));
  for (size_t i = 0; i < gradients.size(); ++i) {
    double& p = state.parameters[i];
    double g = gradients[i] * scale;
    switch (s.kind) {
      case OptimizerKind::adam:
        g += s.weight_decay * p;
        p -= s.learning_rate * adam_direction(s, g, state.first_moment[i], state.second_moment[i]);
        break;
      case OptimizerKind::adamw:
        p -= s.learning_rate * s.weight_decay * p;
        p -= s.learning_rate * adam_direction(s, g, state.first_moment[i], state.second_moment[i]);
        break;
      case OptimizerKind::sgd:
        g += s.weight_decay * p;
        if (s.momentum != 0.0) g = state.first_moment[i] = s.momentum * state.first_moment[i] + g;
        p -= s.learning_rate * g;
        break;
    }
  }
}

}  // namespace meshgrad::reference
