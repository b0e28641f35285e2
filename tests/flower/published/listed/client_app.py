from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import load_data, load_model

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    model = load_model()
    model.set_weights(msg.content["arrays"].to_numpy_ndarrays())
    x_train, y_train, _, _ = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    model.fit(x_train, y_train, epochs=context.run_config["local-epochs"])
    content = RecordDict(
        {"arrays": ArrayRecord(model.get_weights()), "metrics": MetricRecord({"num-examples": len(x_train)})}
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    model = load_model()
    model.set_weights(msg.content["arrays"].to_numpy_ndarrays())
    _, _, x_test, y_test = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss, accuracy = model.evaluate(x_test, y_test)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(x_test)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
