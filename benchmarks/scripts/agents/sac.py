"""Soft actor-critic in one file: two critics, a Gaussian actor, and a learned temperature."""

import torch
import torch.nn as nn
import torch.nn.functional as F

OBSERVATION, ACTION, WIDTH, BATCH = 376, 17, 1024, 16_384
device = torch.device("cuda")


class SoftQNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(OBSERVATION + ACTION, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc3 = nn.Linear(WIDTH, 1)

    def forward(self, x, a):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(torch.cat([x, a], 1))))))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(OBSERVATION, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc_mean, self.fc_logstd = nn.Linear(WIDTH, ACTION), nn.Linear(WIDTH, ACTION)

    def get_action(self, x):
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        log_std = -5 + 0.5 * 7 * (torch.tanh(self.fc_logstd(x)) + 1)
        normal = torch.distributions.Normal(self.fc_mean(x), log_std.exp())
        x_t = normal.rsample()
        y_t = torch.tanh(x_t)
        log_prob = normal.log_prob(x_t) - torch.log(1 - y_t.pow(2) + 1e-6)
        return y_t, log_prob.sum(1, keepdim=True)


actor = Actor().to(device)
qf1, qf2, qf1_target, qf2_target = (SoftQNetwork().to(device) for _ in range(4))
qf1_target.load_state_dict(qf1.state_dict())
qf2_target.load_state_dict(qf2.state_dict())
q_optimizer = torch.optim.Adam(list(qf1.parameters()) + list(qf2.parameters()), lr=1e-3)
actor_optimizer = torch.optim.Adam(list(actor.parameters()), lr=3e-4)
log_alpha = torch.zeros(1, requires_grad=True, device=device)
alpha, a_optimizer = log_alpha.exp().item(), torch.optim.Adam([log_alpha], lr=1e-3)

for step in range(3):
    obs, next_obs = (torch.randn(BATCH, OBSERVATION).to(device) for _ in range(2))
    actions, rewards = torch.rand(BATCH, ACTION).to(device), torch.randn(BATCH, 1).to(device)
    with torch.no_grad():
        next_actions, next_log_pi = actor.get_action(next_obs)
        following = torch.min(qf1_target(next_obs, next_actions), qf2_target(next_obs, next_actions))
        target = rewards + 0.99 * (following - alpha * next_log_pi)
    qf_loss = F.mse_loss(qf1(obs, actions), target) + F.mse_loss(qf2(obs, actions), target)
    q_optimizer.zero_grad()
    qf_loss.backward()
    q_optimizer.step()
    pi, log_pi = actor.get_action(obs)
    actor_loss = (alpha * log_pi - torch.min(qf1(obs, pi), qf2(obs, pi))).mean()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    alpha_loss = (-log_alpha.exp() * (log_pi.detach() - ACTION)).mean()
    a_optimizer.zero_grad()
    alpha_loss.backward()
    a_optimizer.step()
    alpha = log_alpha.exp().item()
    for network, slow in ((qf1, qf1_target), (qf2, qf2_target)):
        for p, p_slow in zip(network.parameters(), slow.parameters(), strict=True):
            p_slow.data.copy_(0.005 * p.data + 0.995 * p_slow.data)
    print(f"step {step}: critic {qf_loss.item():.3f}, actor {actor_loss.item():.3f}")
