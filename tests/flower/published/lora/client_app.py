from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from task import get_model, load_data
from task import test as test_fn
from task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model, data = get_model(), load_data(context.node_config["partition-id"])
    set_peft_model_state_dict(model, msg.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord({"train_loss": train_fn(model, data), "num-examples": 40})
    content = RecordDict({"arrays": ArrayRecord(get_peft_model_state_dict(model)), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model, data = get_model(), load_data(context.node_config["partition-id"])
    set_peft_model_state_dict(model, msg.content["arrays"].to_torch_state_dict())
    metrics = MetricRecord({"eval_acc": test_fn(model, data), "num-examples": 40})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
