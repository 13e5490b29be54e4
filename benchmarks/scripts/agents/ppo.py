"""PPO in one file for an Atari-like environment: rollouts, advantages, and minibatch updates."""

import numpy as np
import torch
import torch.nn as nn
from torch.distributions.categorical import Categorical

NUM_ENVS, NUM_STEPS, EPOCHS, MINIBATCHES, ACTIONS = 64, 64, 2, 4, 6
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Envs:
    """Random frames in place of an emulator."""

    def observe(self):
        return np.random.randint(0, 256, (NUM_ENVS, 4, 84, 84), dtype=np.uint8)

    def step(self, actions):
        return self.observe(), np.random.randn(NUM_ENVS), np.random.rand(NUM_ENVS) < 0.01


def layer_init(layer, std=2**0.5):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            layer_init(nn.Conv2d(4, 32, 8, stride=4)),
            nn.ReLU(),
            layer_init(nn.Conv2d(32, 64, 4, stride=2)),
            nn.ReLU(),
            layer_init(nn.Conv2d(64, 64, 3, stride=1)),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.actor, self.critic = layer_init(nn.Linear(512, ACTIONS), 0.01), layer_init(nn.Linear(512, 1), 1)

    def get_value(self, x):
        return self.critic(self.network(x / 255.0))

    def get_action_and_value(self, x, action=None):
        hidden = self.network(x / 255.0)
        probs = Categorical(logits=self.actor(hidden))
        action = probs.sample() if action is None else action
        return action, probs.log_prob(action), probs.entropy(), self.critic(hidden)


envs, agent = Envs(), Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs = torch.zeros((NUM_STEPS, NUM_ENVS, 4, 84, 84)).to(device)
actions, logprobs, rewards, dones, values = (torch.zeros((NUM_STEPS, NUM_ENVS)).to(device) for _ in range(5))
next_obs, next_done = torch.Tensor(envs.observe()).to(device), torch.zeros(NUM_ENVS).to(device)

for iteration in range(2):
    for step in range(NUM_STEPS):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step], logprobs[step] = action, logprob
        frames, reward, done = envs.step(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        next_obs, next_done = torch.Tensor(frames).to(device), torch.Tensor(done).to(device)
    with torch.no_grad():
        next_value = agent.get_value(next_obs).reshape(1, -1)
        advantages, last = torch.zeros_like(rewards).to(device), 0
        for t in reversed(range(NUM_STEPS)):
            alive = 1.0 - (next_done if t == NUM_STEPS - 1 else dones[t + 1])
            following = next_value if t == NUM_STEPS - 1 else values[t + 1]
            delta = rewards[t] + 0.99 * following * alive - values[t]
            advantages[t] = last = delta + 0.99 * 0.95 * alive * last
        returns = advantages + values
    b_obs, b_actions = obs.reshape((-1, 4, 84, 84)), actions.reshape(-1)
    b_logprobs, b_advantages, b_returns = logprobs.reshape(-1), advantages.reshape(-1), returns.reshape(-1)
    b_inds = np.arange(NUM_ENVS * NUM_STEPS)
    for _ in range(EPOCHS):
        np.random.shuffle(b_inds)
        for mb in np.split(b_inds, MINIBATCHES):
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb], b_actions.long()[mb])
            ratio = (newlogprob - b_logprobs[mb]).exp()
            mb_adv = b_advantages[mb]
            mb_adv = (mb_adv - mb_adv.mean()) / (mb_adv.std() + 1e-8)
            pg_loss = torch.max(-mb_adv * ratio, -mb_adv * torch.clamp(ratio, 0.9, 1.1)).mean()
            v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb]) ** 2).mean()
            loss = pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(f"iteration {iteration}: value loss {v_loss.item():.3f}")
