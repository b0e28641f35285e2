from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import IncomeClassifier, evaluate, get_weights, load_data, set_weights, train

app = ClientApp()


@app.train()
def train_fn(msg: Message, context: Context):
    net = IncomeClassifier(5)
    set_weights(net, msg.content["arrays"].to_numpy_ndarrays())
    loader = load_data(context.node_config["partition-id"])
    train(net, loader)
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(get_weights(net)), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate_fn(msg: Message, context: Context):
    net = IncomeClassifier(5)
    set_weights(net, msg.content["arrays"].to_numpy_ndarrays())
    loader = load_data(context.node_config["partition-id"])
    metrics = MetricRecord({"accuracy": evaluate(net, loader), "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
