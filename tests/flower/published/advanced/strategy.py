"""A learning rate that falls with the rounds, and the best arrays so far: hooks of a strategy, overridden."""

from flwr.serverapp.strategy import FedAvg


class CustomFedAvg(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        if server_round % 2 == 0:
            config["lr"] *= 0.5
        self.best["now"] = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        metrics = super().aggregate_evaluate(server_round, replies)
        if metrics["eval_acc"] > self.best.get("accuracy", -1):
            self.best.update(accuracy=metrics["eval_acc"], arrays=self.best["now"])
        return metrics
