/* Results that backward makes again in place of keeping them. Batch norm with ReLU, without a
 * residual, is one pass over its input, which it keeps anyway; where a convolution takes its result
 * and does much work on each element, that pass is cheap beside the memory that it saves. Made
 * again with the factors of the first time, results have its bits. */
#include "autograd/node.h"

/* Fewer weights for each channel of the input, and the pass would be felt. At stride 1 each element
 * is multiplied so often. */
enum { WORTH = 512 };
/* Input of batch norm with ReLU. */
enum { RESIDUAL = 6 };

/* Whether output 0 can be made again. The reference kernel rounds the statistics that it gives, but
 * not those that it uses. */
static bool can_again(const mn_node *node)
{
    return node->op == &mn_ops[MN_OP_batch_norm_relu] &&
           (node->input_count <= RESIDUAL || !node->inputs[RESIDUAL].view.present) &&
           mn_op_served_by(node->context, node->op, node->inputs[0].view.dtype) == MN_SERVED_KERNEL;
}

void mn_spare(mn_node *node, mn_tensor *const *inputs)
{
    const mn_op *op = node->op;
    if (can_again(node))
        node->outputs[0].saved.again = true; /* backward has no use for it */
    if (op != &mn_ops[MN_OP_conv2d] && op != &mn_ops[MN_OP_conv2d_relu] &&
        op != &mn_ops[MN_OP_conv2d_moments])
        return;
    mn_node_input *x = &node->inputs[0];
    const mn_node *producer = x->producer;
    /* Not if it was written after it was made. */
    x->saved.again = producer && x->output == 0 && producer->outputs[0].saved.again &&
                     producer->outputs[0].saved.version == inputs[0]->storage->version &&
                     node->inputs[1].view.numel >= WORTH * x->view.shape[3];
}

mn_tensor *mn_make_again(const mn_node_input *input)
{
    const mn_node *from = input->producer;
    mn_tensor *const inputs[5] = {from->inputs[0].saved.tensor, from->inputs[1].saved.tensor,
                                  from->inputs[2].saved.tensor, from->outputs[1].saved.tensor,
                                  from->outputs[2].saved.tensor};
    return mn_dispatch1(from->context, MN_OP_batch_norm_relu_again, inputs, 5, from->attributes);
}
