"""The model of faster-model that students don't see: two inputs, normalisation, and a product that no one fuses away."""

SOURCE = '''
class Mixer(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.left, self.right = nn.Linear(128, width), nn.Linear(64, width)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(0.3)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, a, b):
        h = self.norm(torch.sigmoid(self.left(a)) * self.right(b))
        h = self.norm(h + torch.sigmoid(self.mix(self.drop(h))) * h)
        return self.head(h * torch.tanh(h))
'''
HIDDEN = [Model("Mixer", ((640, 128), (640, 64)), ("a network you have not seen", "一个你没有见过的网络"))]  # noqa: F821
